-- Artifacts that are too large to be part of a result, in chunks, so that neither writing nor reading one takes
-- long or much memory. Their size counts as a part of their execution's.
CREATE TABLE artifact_chunks (
    seq        INTEGER NOT NULL REFERENCES executions (seq) ON DELETE CASCADE,
    path       TEXT NOT NULL,
    number     INTEGER NOT NULL,
    media_type TEXT NOT NULL,
    bytes      BLOB NOT NULL,
    UNIQUE (seq, path, number)
) STRICT;
