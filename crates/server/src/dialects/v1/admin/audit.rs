//! `/v1/audit`: the audit log.

use axum::Json;
use axum::extract::RawQuery;
use belljar_store::AuditPage;

use super::AdminRequest;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::query::Query;

const DEFAULT_PAGE_SIZE: u32 = 50;

/// Lists all administrative actions, including refused ones, newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "administration",
    params(
        ("tenant" = Option<String>, Query, description = "Only entries of this tenant"),
        ("limit" = Option<u32>, Query, description = "Page size; default 50"),
        ("cursor" = Option<i64>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page of the audit log", body = ref(schema::response::<AuditPage>()))))]
pub(crate) async fn list(admin: AdminRequest, query: RawQuery) -> Result<Json<AuditPage>, Error> {
    let query = Query::parse(query, &["tenant", "limit", "cursor"])?;
    let (tenant, cursor) = (query.get("tenant").map(str::to_owned), query.parsed("cursor")?);
    let limit = query.parsed("limit")?.unwrap_or(DEFAULT_PAGE_SIZE);
    Ok(Json(admin.state.store.audit_log(tenant, cursor, limit).await?))
}
