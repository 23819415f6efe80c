-- What is said about a provider, every time that it was changed; the newest counts. Secrets are not in `json`, which
-- shows that they are set, but in `sealed`, and only whoever has the key can read them. Without `json`, it is not used.
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

-- Who serves the tenant's requests that name nobody; nothing where that is the usual one.
ALTER TABLE tenants ADD COLUMN provider TEXT;
