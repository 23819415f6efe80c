//! Tenants never see each other's data, and keys are valid exactly as long as they should be.

use belljar_engine::Fault;
use belljar_engine::report::Status;
use belljar_store::executions::{ExecutionFilter, ExecutionOutcome};
use belljar_store::{
    DailyUsage, Error, ExecutionId, NewSandbox, ObjectKind, OwnedObjects, Quotas, SandboxEnd, SandboxFilter,
    SandboxId, SandboxState, Scope, Scopes, Snapshot, SnapshotId, Store, StoreOptions, TenantDeletionStep,
    TenantName, Volume, VolumeId,
};
use serde_json::{Map, json};

use crate::common::{begin, finish, object, open, running_execution, tenant, test_store, timestamp};

async fn sandbox(store: &Store, tenant: &TenantName) -> SandboxId {
    let id = SandboxId::generate().unwrap();
    let settings = object(json!({"image": "host", "env_names": ["TOKEN"]}));
    let (tenant, metadata) = (tenant.clone(), Map::new());
    let new = NewSandbox {
        id: id.clone(),
        tenant,
        settings,
        metadata,
        created: timestamp(1),
        expires: Some(timestamp(9)),
    };
    store.add_sandbox(new).await.unwrap();
    id
}

fn being_made(tenant: &TenantName, id: &SnapshotId, sandbox: &SandboxId, size_bytes: u64) -> Snapshot {
    let (tenant, id, sandbox) = (tenant.clone(), id.clone(), sandbox.clone());
    Snapshot {
        tenant,
        id,
        sandbox,
        label: "before".to_owned(),
        size_bytes,
        created: timestamp(2),
        ready: None,
    }
}

#[tokio::test]
async fn concurrent_requests_cannot_exceed_a_quota() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let volume = |name: &str, size_bytes| Volume {
        tenant: tenant.clone(),
        name: name.parse().unwrap(),
        id: VolumeId::generate().unwrap(),
        size_bytes,
        created: timestamp(1),
    };
    let both = tokio::join!(store.add_volume(volume("a", 6), 10), store.add_volume(volume("b", 6), 10));
    let refused = [both.0, both.1].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!(matches!(refused[..], [Error::Quota { left: 4 }]), "{refused:?}");
    let sandbox = sandbox(store, tenant).await;
    let id = SnapshotId::generate().unwrap();
    assert_eq!(store.add_snapshot(being_made(tenant, &id, &sandbox, 100), 10).await.unwrap(), 4);
    let another = being_made(tenant, &SnapshotId::generate().unwrap(), &sandbox, 100);
    assert!(matches!(store.add_snapshot(another, 10).await, Err(Error::Quota { left: 0 })));
    store.mark_snapshot_ready(tenant, &id, 1, timestamp(3)).await.unwrap();
    store.add_volume(volume("c", 3), 10).await.unwrap();
}

#[tokio::test]
async fn tenants_cannot_see_each_others_data() {
    let fixture = test_store().await;
    let (store, a) = (&fixture.store, &fixture.tenant);
    let b = tenant(store, "other").await;
    let execution = begin(store, running_execution(a)).await;
    let sandbox = sandbox(store, a).await;
    let snapshot = SnapshotId::generate().unwrap();
    assert_eq!(store.add_snapshot(being_made(a, &snapshot, &sandbox, 9), 7).await.unwrap(), 7);
    let name: belljar_store::VolumeName = "data".parse().unwrap();
    let id = VolumeId::generate().unwrap();
    let volume =
        Volume { tenant: a.clone(), name: name.clone(), id, size_bytes: 1 << 30, created: timestamp(3) };
    store.add_volume(volume.clone(), u64::MAX).await.unwrap();
    assert!(matches!(
        store.add_volume(volume.clone(), u64::MAX).await,
        Err(Error::Exists(ObjectKind::Volume))
    ));
    assert_eq!(
        (store.reserved_bytes(a).await.unwrap(), store.reserved_bytes(&b).await.unwrap()),
        ((1 << 30) + 7, 0)
    );
    let (volumes, snapshots) = store.volume_and_snapshot_ids().await.unwrap();
    assert_eq!((volumes, snapshots), (vec![volume.id], vec![snapshot.clone()]));

    let end = ExecutionOutcome::failed_to_start(&json!({}), timestamp(9)).unwrap();
    let missing = |error: Error| assert!(matches!(error, Error::NotFound(_)), "{error}");
    missing(store.finish_execution(&b, &execution, end).await.unwrap_err());
    missing(store.start_execution(&b, &execution, timestamp(1)).await.unwrap_err());
    missing(store.abandon_execution(&b, &execution).await.unwrap_err());
    missing(store.set_sandbox_state(&b, &sandbox, SandboxState::Paused, timestamp(4)).await.unwrap_err());
    missing(store.end_sandbox(&b, &sandbox, SandboxEnd::Closed, "", timestamp(4)).await.unwrap_err());
    missing(store.mark_snapshot_ready(&b, &snapshot, 1, timestamp(4)).await.unwrap_err());
    missing(store.remove_snapshot(&b, &snapshot).await.unwrap_err());
    missing(store.remove_volume(&b, &name).await.unwrap_err());
    assert!(store.execution(&b, &execution).await.unwrap().is_none());
    assert!(store.sandbox(&b, &sandbox).await.unwrap().is_none());
    assert!(store.snapshot(&b, &snapshot).await.unwrap().is_none());
    assert!(store.volume(&b, &name).await.unwrap().is_none());
    // Another tenant's id is a valid cursor, but reveals nothing.
    let page = store.executions(&b, ExecutionFilter::default(), Some(execution.clone()), 10).await.unwrap();
    assert_eq!((page.executions.len(), page.next_cursor), (0, None));
    assert!(store.sandboxes(&b, SandboxFilter::default(), None, 10).await.unwrap().sandboxes.is_empty());
    assert!(store.snapshots(&b).await.unwrap().is_empty() && store.volumes(&b).await.unwrap().is_empty());

    assert_eq!(store.execution(a, &execution).await.unwrap().unwrap().summary.status, Status::Running);
    assert_eq!(store.sandbox(a, &sandbox).await.unwrap().unwrap().state, SandboxState::Starting);
    assert!(store.volume(a, &name).await.unwrap().is_some());
    assert_eq!(store.delete_unfinished_snapshots().await.unwrap(), [snapshot]);
}

#[tokio::test]
async fn sandboxes_end_once() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let (one, two) = (sandbox(store, tenant).await, sandbox(store, tenant).await);
    store.set_sandbox_state(tenant, &one, SandboxState::Running, timestamp(2)).await.unwrap();
    assert_eq!(store.count_live_sandboxes(tenant).await.unwrap(), 2);
    let listed = async |states: &[SandboxState], cursor| {
        let filter = SandboxFilter { states: states.to_vec(), ..SandboxFilter::default() };
        let page = store.sandboxes(tenant, filter, cursor, 1).await.unwrap();
        (page.sandboxes.into_iter().map(|sandbox| sandbox.id).collect::<Vec<_>>(), page.next_cursor)
    };
    let (newer, older) = (one.clone().max(two.clone()), one.clone().min(two.clone()));
    assert_eq!(listed(&[], None).await, (vec![newer.clone()], Some(newer.clone())));
    assert_eq!(listed(&[], Some(newer)).await, (vec![older], None));
    assert_eq!(listed(&[SandboxState::Running, SandboxState::Paused], None).await, (vec![one.clone()], None));
    let long = format!("not used for {}", "ö".repeat(512));
    store.end_sandbox(tenant, &one, SandboxEnd::Expired, &long, timestamp(3)).await.unwrap();
    assert!(store.end_sandbox(tenant, &one, SandboxEnd::Closed, "closed", timestamp(4)).await.is_err());
    assert_eq!(store.interrupt_sandboxes(timestamp(5)).await.unwrap(), std::slice::from_ref(&two));
    assert!(store.interrupt_sandboxes(timestamp(6)).await.unwrap().is_empty());
    let (one, two) = (store.sandbox(tenant, &one).await.unwrap(), store.sandbox(tenant, &two).await.unwrap());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.ended, Some((timestamp(3), SandboxEnd::Expired)));
    assert!(one.end_reason().unwrap().starts_with("not used for ö"));
    assert_eq!(one.end_reason().unwrap().len(), 511, "cut, but not within a character");
    assert_eq!(two.ended, Some((timestamp(5), SandboxEnd::Interrupted)));
    assert_eq!((two.end_reason(), two.expires), (Some("its server stopped unexpectedly"), None));
}

#[tokio::test]
async fn sandboxes_are_found_by_their_metadata() {
    let fixture = test_store().await;
    let metadata = object(json!({"agent": "a", "n": 7, "on": true, "deep": {"agent": "b"}}));
    let id = SandboxId::generate().unwrap();
    let (tenant, settings) = (fixture.tenant.clone(), Map::new());
    let new = NewSandbox { id, tenant, settings, metadata, created: timestamp(1), expires: None };
    fixture.store.add_sandbox(new).await.unwrap();
    let found = async |metadata: &[(&str, &str)]| {
        let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let filter = SandboxFilter { states: Vec::new(), metadata };
        fixture.store.sandboxes(&fixture.tenant, filter, None, 10).await.map(|page| page.sandboxes.len())
    };
    for wanted in [&[][..], &[("agent", "a")], &[("n", "7"), ("on", "true")]] {
        assert_eq!(found(wanted).await.unwrap(), 1, "{wanted:?}");
    }
    for wanted in [&[("agent", "b")][..], &[("agent", "a"), ("n", "8")], &[("'", "x")]] {
        assert_eq!(found(wanted).await.unwrap(), 0, "{wanted:?}");
    }
    assert!(found(&[("k", "v"); 9]).await.is_err());
}

#[tokio::test]
async fn sandbox_input_is_not_stored() {
    let fixture = test_store().await;
    for settings in [json!({"env": {"TOKEN": "s3cret"}}), json!({"files": []}), json!({"code": "x"})] {
        let new = NewSandbox {
            id: SandboxId::generate().unwrap(),
            tenant: fixture.tenant.clone(),
            settings: object(settings),
            metadata: Map::new(),
            created: timestamp(1),
            expires: None,
        };
        let error = fixture.store.add_sandbox(new).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Caller);
        assert!(error.to_string().ends_with("is input and is never stored"), "{error}");
    }
}

#[tokio::test]
async fn tenants_are_unique_and_quotas_change_one_by_one() {
    let fixture = test_store().await;
    let (store, name) = (&fixture.store, &fixture.tenant);
    let quotas = Quotas { concurrency: Some(3), cpu_seconds_per_day: Some(3_600), ..Quotas::default() };
    let twice = store.add_tenant(name, quotas, timestamp(1)).await.unwrap_err();
    assert_eq!(twice.to_string(), "a tenant with this name already exists");
    store.change_quotas(name, move |all| *all = quotas).await.unwrap();
    store.change_quotas(name, |all| all.memory_bytes = Some(7)).await.unwrap();
    let changed = Quotas { memory_bytes: Some(7), ..quotas };
    assert_eq!(store.tenant(name).await.unwrap().unwrap().quotas, changed);
    let huge = store.change_quotas(name, |all| all.disk_bytes = Some(u64::MAX)).await;
    assert_eq!(huge.unwrap_err().fault(), Fault::Caller);
    assert_eq!(store.tenant(name).await.unwrap().unwrap().quotas, changed);
    let missing = store.change_quotas(&"nobody".parse().unwrap(), |_| {}).await;
    assert!(matches!(missing, Err(Error::NotFound(ObjectKind::Tenant))));
}

/// Continues a deletion until nothing is left, and returns the ids of the volumes.
async fn delete_all(store: &Store, name: &TenantName) -> Vec<VolumeId> {
    loop {
        match store.delete_tenant_step(name).await.unwrap() {
            TenantDeletionStep::More(_) => {}
            TenantDeletionStep::Last(deleted) => return deleted.volumes,
            TenantDeletionStep::NotBeingDeleted => panic!("{name} is not being deleted"),
        }
    }
}

#[tokio::test]
async fn a_deleted_tenant_leaves_nothing_and_a_crash_does_not_stop_its_deletion() {
    let fixture = test_store().await;
    let (store, gone) = (fixture.store, fixture.tenant);
    let kept = tenant(&store, "kept").await;
    let mut volumes = Vec::new();
    let mut secrets = Vec::new();
    for name in [&gone, &kept] {
        for _ in 0..150 {
            let id = begin(&store, running_execution(name)).await;
            finish(&store, name, &id, 2_000, 10).await;
        }
        let owner = sandbox(&store, name).await;
        store.end_sandbox(name, &owner, SandboxEnd::Closed, "closed", timestamp(3)).await.unwrap();
        let id = SnapshotId::generate().unwrap();
        store.add_snapshot(being_made(name, &id, &owner, 9), u64::MAX).await.unwrap();
        let id = VolumeId::generate().unwrap();
        volumes.push(id.clone());
        let volume = Volume {
            tenant: name.clone(),
            name: "data".parse().unwrap(),
            id,
            size_bytes: 1 << 20,
            created: timestamp(3),
        };
        store.add_volume(volume, u64::MAX).await.unwrap();
        let key = store.add_key(name, "ci", Scopes::all(), None, timestamp(1)).await.unwrap();
        secrets.push(key.secret.reveal().to_owned());
    }
    let opens = async |store: &Store, secret: &str| store.verify_key(secret, timestamp(5)).await.unwrap();

    assert_eq!(store.delete_tenant_step(&gone).await.unwrap(), TenantDeletionStep::NotBeingDeleted);
    store.begin_tenant_deletion(&gone, timestamp(4)).await.unwrap();
    store.begin_tenant_deletion(&gone, timestamp(5)).await.unwrap();
    assert_eq!(store.tenant(&gone).await.unwrap().unwrap().deleting, Some(timestamp(4)));
    assert!(opens(&store, &secrets[0]).await.is_none() && opens(&store, &secrets[1]).await.is_some());
    let enabled = store.disable_tenant(&gone, None).await;
    assert!(matches!(enabled, Err(Error::BeingDeleted(ObjectKind::Tenant))), "{enabled:?}");
    let step = store.delete_tenant_step(&gone).await.unwrap();
    assert!(matches!(step, TenantDeletionStep::More(deleted) if deleted.executions == 100));
    store.close().await;

    let store = open(fixture.folder.path(), &StoreOptions::default());
    let unfinished = store.tenants().await.unwrap().into_iter().filter(|tenant| tenant.deleting.is_some());
    assert_eq!(unfinished.map(|tenant| tenant.name).collect::<Vec<_>>(), std::slice::from_ref(&gone));
    assert_eq!(delete_all(&store, &gone).await, volumes[..1]);
    assert!(store.tenant(&gone).await.unwrap().is_none());
    assert!(store.owned_objects(&gone).await.unwrap().is_none());
    assert!(store.begin_execution(running_execution(&gone)).await.is_err());
    assert_eq!(store.volume_and_snapshot_ids().await.unwrap().0, volumes[1..]);
    let owned = store.owned_objects(&kept).await.unwrap().unwrap();
    assert_eq!((owned.executions, owned.volumes, owned.snapshots, owned.keys), (150, 1, 1, 1));
    assert_eq!(owned.disk_bytes, (1 << 20) + 9);

    // A new tenant of the same name starts without anything of the old one.
    store.add_tenant(&gone, Quotas::default(), timestamp(9)).await.unwrap();
    assert_eq!(store.owned_objects(&gone).await.unwrap(), Some(OwnedObjects::default()));
    assert!(store.sandboxes(&gone, SandboxFilter::default(), None, 10).await.unwrap().sandboxes.is_empty());
    assert_eq!(store.usage(&gone, timestamp(2_000).day()).await.unwrap(), DailyUsage::default());
    assert_eq!(store.delete_tenant_step(&gone).await.unwrap(), TenantDeletionStep::NotBeingDeleted);
}

#[tokio::test]
async fn only_ended_executions_are_deleted() {
    let fixture = test_store().await;
    let (store, name) = (&fixture.store, &fixture.tenant);
    let other = tenant(store, "other").await;
    let id = begin(store, running_execution(name)).await;
    let refused = store.delete_execution(name, &id).await;
    assert!(matches!(refused, Err(Error::Unfinished(ObjectKind::Execution))), "{refused:?}");
    finish(store, name, &id, 2_000, 10).await;
    for (tenant, id) in [(&other, id.clone()), (name, ExecutionId::generate().unwrap())] {
        let unknown = store.delete_execution(tenant, &id).await;
        assert!(matches!(unknown, Err(Error::NotFound(ObjectKind::Execution))), "{unknown:?}");
    }
    assert!(store.owned_objects(name).await.unwrap().unwrap().executions_bytes > 0);
    store.delete_execution(name, &id).await.unwrap();
    assert!(store.execution(name, &id).await.unwrap().is_none());
    assert_eq!(store.owned_objects(name).await.unwrap(), Some(OwnedObjects::default()));
    assert_eq!(store.usage(name, timestamp(2_000).day()).await.unwrap().executions, 1);
}

#[tokio::test]
async fn a_key_is_valid_until_revoked_expired_or_disabled() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let scopes: Scopes = [Scope::Run, Scope::Sandboxes].into_iter().collect();
    let key = store.add_key(tenant, "ci", scopes, Some(timestamp(1_000_000)), timestamp(1)).await.unwrap();
    let text = key.secret.reveal().to_owned();
    let opens = async |text: &str, millis| store.verify_key(text, timestamp(millis)).await.unwrap().is_some();

    let holder = store.verify_key(&text, timestamp(2)).await.unwrap().unwrap();
    assert_eq!((&holder.key, &holder.tenant, holder.scopes), (&key.record.id, tenant, scopes));
    assert!(!opens(&text, 1_000_000).await, "expired");
    let (head, last) = text.split_at(text.len() - 1);
    let forged = format!("{head}{}", if last == "0" { "1" } else { "0" });
    for wrong in ["", "bj_", "x", key.record.id.as_str(), head, &forged, &text.to_uppercase()] {
        assert!(!opens(wrong, 2).await, "{wrong}");
    }
    store.disable_tenant(tenant, Some(timestamp(3))).await.unwrap();
    assert!(!opens(&text, 4).await, "disabled");
    store.disable_tenant(tenant, None).await.unwrap();
    assert!(opens(&text, 4).await);
    store.revoke_key(tenant, &key.record.id, timestamp(5)).await.unwrap();
    assert!(!opens(&text, 6).await, "revoked");
    let listed = store.keys(tenant).await.unwrap();
    assert_eq!((listed[0].revoked, listed[0].last_used), (Some(timestamp(5)), Some(timestamp(2))));
}

#[tokio::test]
async fn a_rotated_key_has_a_successor_and_expires() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let old = store.add_key(tenant, "ci", Scopes::all(), None, timestamp(1)).await.unwrap();
    let new = store.rotate_key(tenant, &old.record.id, timestamp(100), timestamp(10)).await.unwrap();
    assert_eq!((&new.record.label[..], new.record.scopes, new.record.expires), ("ci", Scopes::all(), None));
    for (millis, old_opens) in [(50, true), (100, false)] {
        let held = store.verify_key(old.secret.reveal(), timestamp(millis)).await.unwrap();
        assert_eq!(held.is_some(), old_opens);
        assert!(store.verify_key(new.secret.reveal(), timestamp(millis)).await.unwrap().is_some());
    }
    let other = crate::common::tenant(store, "other").await;
    assert!(store.rotate_key(&other, &new.record.id, timestamp(1), timestamp(1)).await.is_err());
    assert!(store.revoke_key(&other, &new.record.id, timestamp(1)).await.is_err());
    assert!(
        store.rotate_key(tenant, &old.record.id, timestamp(300), timestamp(200)).await.is_err(),
        "the key has expired"
    );
}

#[tokio::test]
async fn key_secrets_are_not_in_the_file() {
    let fixture = test_store().await;
    let key = fixture.store.add_key(&fixture.tenant, "ci", Scopes::all(), None, timestamp(1)).await.unwrap();
    let text = key.secret.reveal().to_owned();
    fixture.store.verify_key(&text, timestamp(2)).await.unwrap().unwrap();
    let secret = text.rsplit('_').next().unwrap().as_bytes();
    for file in std::fs::read_dir(fixture.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    }
}
