-- A policy above which no request of the tenant can go; nothing where requests choose freely.
ALTER TABLE tenants ADD COLUMN policy TEXT;
