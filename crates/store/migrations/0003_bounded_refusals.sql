-- A client with a key can be refused any number of times, and each refusal is an entry. Only a tenant's
-- newest thousand refusals are kept. Entries of administrative actions expire by age alone, so refusals
-- cannot displace them.
CREATE TABLE audit_refusals (
    tenant  TEXT NOT NULL PRIMARY KEY,
    entries INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_refused ON audit (tenant, seq) WHERE outcome = 'refused';
INSERT INTO audit_refusals SELECT coalesce(tenant, ''), count(*) FROM audit WHERE outcome = 'refused' GROUP BY 1;

DROP TRIGGER audit_shrinks_by_age_only;
CREATE TRIGGER audit_shrinks_by_age_and_refusals BEFORE DELETE ON audit
    WHEN old.at_ms >= coalesce((SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'audit.kept_since_ms'), 0)
         AND NOT (old.outcome = 'refused'
                  AND (SELECT entries FROM audit_refusals WHERE tenant = coalesce(old.tenant, '')) > 1000)
BEGIN
    SELECT raise(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_counts_refusals_down AFTER DELETE ON audit WHEN old.outcome = 'refused' BEGIN
    UPDATE audit_refusals SET entries = entries - 1 WHERE tenant = coalesce(old.tenant, '');
END;
CREATE TRIGGER audit_keeps_the_newest_refusals AFTER INSERT ON audit WHEN new.outcome = 'refused' BEGIN
    INSERT INTO audit_refusals VALUES (coalesce(new.tenant, ''), 1) ON CONFLICT DO UPDATE SET entries = entries + 1;
    DELETE FROM audit WHERE seq IN (
        SELECT seq FROM audit WHERE outcome = 'refused' AND tenant IS new.tenant ORDER BY seq
        LIMIT (SELECT max(entries - 1000, 0) FROM audit_refusals WHERE tenant = coalesce(new.tenant, '')));
END;
