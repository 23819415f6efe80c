-- When the deletion of the tenant began. Its keys are refused since then, and it cannot be enabled again.
ALTER TABLE tenants ADD COLUMN deleting_ms INTEGER;
