-- Versioned settings of providers; the newest version is in effect. `json` has masks in place of secrets, and
-- null removes the configuration. The secrets are in `sealed`, readable only with the sealing key.
CREATE TABLE provider_versions (
    provider   TEXT NOT NULL,
    version    INTEGER NOT NULL,
    json       TEXT,
    instead    TEXT NOT NULL,
    sealed     BLOB,
    actor      TEXT NOT NULL,
    changed_ms INTEGER NOT NULL,
    PRIMARY KEY (provider, version)
) STRICT, WITHOUT ROWID;

-- Provider of the tenant's requests that name none; null for the server's default.
ALTER TABLE tenants ADD COLUMN provider TEXT;
