import cv2
from google.cloud import storage

try:
    import ujson
except ImportError:
    ujson = None
