-- Why a sandbox ended, for people; null for sandboxes of earlier versions, which only have `ended_because`.
ALTER TABLE sandboxes ADD COLUMN ended_reason TEXT;
