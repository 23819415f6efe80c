-- Index of executions by metadata: one row for each plain value, up to 32 per execution.
CREATE TABLE execution_metadata (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    id     TEXT NOT NULL,
    seq    INTEGER NOT NULL REFERENCES executions (seq) ON DELETE CASCADE,
    PRIMARY KEY (tenant, key, value, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX execution_metadata_by_execution ON execution_metadata (seq);

-- Must match `index_metadata` in executions/metadata.rs, which indexes new executions.
INSERT OR IGNORE INTO execution_metadata (tenant, key, value, id, seq)
    SELECT tenant, key, value, id, seq FROM (
        SELECT e.tenant, e.id, e.seq, j.key AS key,
               CASE j.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(j.atom AS TEXT) END AS value,
               row_number() OVER (PARTITION BY e.seq ORDER BY j.id) AS place
        FROM executions e, json_each(e.metadata) j
        WHERE j.type IN ('text', 'integer', 'real', 'true', 'false')
              AND length(CAST(j.key AS BLOB)) <= 64 AND length(CAST(j.atom AS BLOB)) <= 256
    ) WHERE place <= 32;

-- Entries of the audit log still never change, but those older than a cutoff that only moves forward may be
-- deleted.
DROP TRIGGER audit_never_shrinks;
CREATE TRIGGER audit_shrinks_by_age_only BEFORE DELETE ON audit
    WHEN old.at_ms >= coalesce((SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'audit.kept_since_ms'), 0)
BEGIN
    SELECT raise(ABORT, 'the audit log is append-only');
END;
