-- The least strict policy that the tenant's requests may use; null allows any.
ALTER TABLE tenants ADD COLUMN policy TEXT;
