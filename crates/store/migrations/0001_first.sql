-- The first schema. Times are milliseconds since 1970, sizes are bytes, days are days since 1970.
-- Queries for a tenant's data name the tenant: it is the first column of every index.

CREATE TABLE tenants (
    name                TEXT PRIMARY KEY,
    -- Quotas; null is the server's own default.
    concurrency         INTEGER,
    sandboxes           INTEGER,
    cpu_seconds_per_day INTEGER,
    memory_bytes        INTEGER,
    disk_bytes          INTEGER,
    created_ms          INTEGER NOT NULL,
    disabled_ms         INTEGER,
    -- What its finished executions take; kept by the triggers below.
    stored_bytes        INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
    id           TEXT PRIMARY KEY,
    tenant       TEXT NOT NULL REFERENCES tenants (name),
    hash         BLOB NOT NULL CHECK (length(hash) = 32),
    label        TEXT NOT NULL,
    scopes       TEXT NOT NULL,
    created_ms   INTEGER NOT NULL,
    expires_ms   INTEGER,
    last_used_ms INTEGER,
    revoked_ms   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_tenant ON keys (tenant);

CREATE TABLE profiles (
    name       TEXT PRIMARY KEY,
    json       TEXT NOT NULL,
    changed_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Code, input and environment are not stored, only what the caller may list later.
CREATE TABLE executions (
    seq             INTEGER PRIMARY KEY,
    tenant          TEXT NOT NULL REFERENCES tenants (name),
    id              TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'timed_out',
                                                    'limit_exceeded', 'refused', 'cancelled', 'interrupted')),
    language        TEXT NOT NULL,
    metadata        TEXT NOT NULL,
    created_ms      INTEGER NOT NULL,
    started_ms      INTEGER,
    ended_ms        INTEGER,
    exit_code       INTEGER,
    cpu_ms          INTEGER NOT NULL DEFAULT 0,
    size_bytes      INTEGER NOT NULL DEFAULT 0,
    idempotency_key TEXT,
    request_digest  BLOB CHECK (length(request_digest) = 32),
    CHECK ((ended_ms IS NULL) = (status IN ('queued', 'running'))),
    CHECK ((idempotency_key IS NULL) = (request_digest IS NULL)),
    UNIQUE (tenant, id)
) STRICT;
CREATE UNIQUE INDEX executions_by_idempotency_key ON executions (tenant, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_by_status ON executions (tenant, status, id);
CREATE INDEX executions_by_end ON executions (ended_ms);

-- A separate table, so that lists only read small rows.
CREATE TABLE results (
    seq  INTEGER PRIMARY KEY REFERENCES executions (seq) ON DELETE CASCADE,
    json TEXT NOT NULL
) STRICT;

CREATE TRIGGER executions_grow AFTER UPDATE OF size_bytes ON executions BEGIN
    UPDATE tenants SET stored_bytes = stored_bytes + new.size_bytes - old.size_bytes WHERE name = new.tenant;
END;
CREATE TRIGGER executions_go AFTER DELETE ON executions WHEN old.size_bytes > 0 BEGIN
    UPDATE tenants SET stored_bytes = stored_bytes - old.size_bytes WHERE name = old.tenant;
END;

-- Settings contain the names of environment variables, never their values.
CREATE TABLE sandboxes (
    tenant        TEXT NOT NULL REFERENCES tenants (name),
    id            TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('starting', 'running', 'paused', 'ended')),
    settings      TEXT NOT NULL,
    metadata      TEXT NOT NULL,
    created_ms    INTEGER NOT NULL,
    changed_ms    INTEGER NOT NULL,
    expires_ms    INTEGER,
    ended_ms      INTEGER,
    ended_because TEXT CHECK (ended_because IN ('closed', 'expired', 'idle', 'failed', 'interrupted')),
    PRIMARY KEY (tenant, id),
    CHECK ((ended_ms IS NOT NULL) = (state = 'ended')),
    CHECK ((ended_ms IS NULL) = (ended_because IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX sandboxes_by_end ON sandboxes (ended_ms);

CREATE TABLE volumes (
    tenant     TEXT NOT NULL REFERENCES tenants (name),
    name       TEXT NOT NULL,
    id         TEXT NOT NULL UNIQUE,
    size_bytes INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

-- The sandbox may be gone: its snapshots outlive it.
CREATE TABLE snapshots (
    tenant     TEXT NOT NULL REFERENCES tenants (name),
    id         TEXT NOT NULL,
    sandbox    TEXT NOT NULL,
    label      TEXT NOT NULL,
    size_bytes INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL,
    ready_ms   INTEGER,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
    tenant     TEXT NOT NULL REFERENCES tenants (name),
    day        INTEGER NOT NULL,
    cpu_ms     INTEGER NOT NULL,
    executions INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) STRICT, WITHOUT ROWID;

-- The tenant is a name without a foreign key: entries outlive the tenant.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms      INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    tenant     TEXT,
    action     TEXT NOT NULL,
    target     TEXT,
    outcome    TEXT NOT NULL CHECK (outcome IN ('done', 'refused', 'failed')),
    request_id TEXT,
    detail     TEXT
) STRICT;
CREATE TRIGGER audit_never_changes BEFORE UPDATE ON audit BEGIN
    SELECT raise(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_never_shrinks BEFORE DELETE ON audit BEGIN
    SELECT raise(ABORT, 'the audit log is append-only');
END;

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
