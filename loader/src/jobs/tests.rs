//! Jobs on a volume, without sources.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::time::Duration;

use portcullis_contract::{ExecutionMode, Tenant};

use super::*;
use crate::claims::Need;
use crate::compile::CompileLimits;
use crate::source::Fetching;
use crate::volume::Compiled;

fn runner(volume: Volume) -> JobRunner {
    let time = Duration::from_secs(5);
    let limits = CompileLimits {
        jobs: 1,
        memory: 64 << 20,
        time,
        cpu_time: time,
        max_module_size: 1 << 20,
        max_artifact_size: 1 << 20,
    };
    let (sources, compilers) = (Sources::new(Vec::new(), Fetching::alone()), Compilers::new(limits));
    let metrics = Metrics::new().expect("metrics");
    JobRunner::new(Arc::new(volume), sources, compilers, metrics, limits, PinSource::Loader)
}

#[tokio::test]
async fn a_job_that_is_ended_keeps_its_place_among_the_readers_while_it_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let volume = Volume::open(folder.path(), "0123456789abcdef").expect("opens").expect("is free");
    let runner = Arc::new(runner(volume));
    let mut claims = Claims::default();
    claims.add(&Tenant::Cluster, Need::New);
    let context = Arc::new(JobContext::new(claims));
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let job = tokio::spawn({
        let (runner, context) = (Arc::clone(&runner), Arc::clone(&context));
        async move { runner.read(&context, move |_| goes_on.recv().is_ok()).await }
    });
    tokio::task::yield_now().await;
    job.abort();
    assert!(job.await.is_err_and(|error| error.is_cancelled()));
    let mut next = Box::pin(runner.read(&context, |_| ()));
    let waits = tokio::time::timeout(Duration::from_millis(100), next.as_mut()).await;
    assert!(waits.is_err(), "the first one still reads");
    go_on.send(()).expect("it waits");
    assert_eq!(next.await, Ok(()));
}

#[tokio::test]
async fn removed_files_are_returned_once() {
    let (folder, module) = (tempfile::tempdir().expect("a folder"), Digest::of(b"module"));
    let volume = Volume::open(folder.path(), "0123456789abcdef").expect("opens").expect("is free");
    let file = format!("{}-0123456789abcdef.cwasm", module.hex());
    fs::write(folder.path().join("artifacts").join(&file), "code").expect("writes");
    let runner = runner(volume);
    runner.keep(Keep {
        files: HashSet::from([file.clone()]),
        spare: HashMap::from([(module, Some(file.clone()))]),
        ..Keep::default()
    });
    assert!(runner.make_room(None).await);
    assert_eq!((runner.removed(), runner.removed()), (HashSet::from([file]), HashSet::new()));
}

#[tokio::test]
async fn z08_a_tenant_that_has_had_its_share_removes_nothing_of_others() {
    const KIB: u64 = 1 << 10;
    let [greedy, other] = ["greedy", "other"].map(|name| Tenant::Namespace(name.into()));
    let folder = tempfile::tempdir().expect("a folder");
    let digests = ["serves", "greedy", "other"].map(|name| Digest::of(name.as_bytes()));
    let path = |digest: &Digest| folder.path().join("modules").join(format!("{}.wasm", digest.hex()));
    let volume = Volume::open(folder.path(), "0123456789abcdef").expect("opens").expect("is free");
    for (digest, kib) in digests.iter().zip([40, 12, 12]) {
        fs::write(path(digest), vec![0; kib << 10]).expect("writes");
    }
    let nobodys = path(&Digest::of(b"of no policy"));
    fs::write(&nobodys, "").expect("writes");
    let runner = runner(volume.with_room(Some(120 * KIB)).expect("counts"));
    let owners = digests.iter().zip([&greedy, &greedy, &other]);
    runner.keep(Keep {
        digests: HashSet::from(digests),
        spare: HashMap::from([(digests[1], None), (digests[2], None)]),
        owners: owners.map(|(digest, tenant)| (*digest, BTreeSet::from([tenant.clone()]))).collect(),
        newest: 8,
        ..Keep::default()
    });
    let write = async |tenant: &Tenant, kib: u64| {
        let mut claims = Claims::default();
        claims.add(tenant, Need::New);
        let context = JobContext::new(claims);
        let reserve = || runner.volume.room().reserve(context.claims()).telling(&context.share_is_short);
        let write = || async { Ok(reserve().check(kib * KIB)?) };
        runner.making_room(Some(&context), write).await.map_err(|error| error.reason)
    };
    let left = || digests.each_ref().map(|digest| path(digest).exists());
    // The tenant has 52 KiB, and 56 KiB are free.
    assert_eq!(write(&greedy, 20).await, Err(Reason::VolumeFull));
    assert_eq!(left(), [true, false, true], "it gives way itself");
    assert!(!nobodys.exists());
    assert_eq!(write(&greedy, 20).await, Err(Reason::VolumeFull));
    assert_eq!(write(&greedy, 14).await, Ok(()), "as it has 40 KiB, and 68 KiB are free");
    assert_eq!(left(), [true, false, true]);
    assert_eq!(write(&Tenant::Cluster, 70).await, Ok(()), "where the volume itself has no room");
    assert_eq!(left(), [true, false, false]);
}

#[tokio::test]
async fn an_artifact_of_an_earlier_release_serves_although_its_module_cannot_be_read() {
    let (folder, module) = (tempfile::tempdir().expect("a folder"), Digest::of(b"module"));
    let volume = Volume::open(folder.path(), "0123456789abcdef").expect("opens").expect("is free");
    let temporary = volume.temporary();
    temporary.open().expect("opens").write_all(b"code").expect("writes");
    let (sha256, execution_mode) = (Digest::of(b"code"), ExecutionMode::KubewardenWapc);
    let compiled = Compiled { sha256, size: 4, execution_mode, declared: None };
    let reservation = volume.room().reserve(Arc::default());
    let record = volume.publish_artifact(temporary, &module, &compiled, reservation).expect("publishes");
    let runner = runner(volume);
    let mut claims = Claims::default();
    claims.add(&Tenant::Cluster, Need::New);
    let context = Arc::new(JobContext::new(claims));
    let prepare = async || runner.prepare(module, false, &context).await;
    let serves = Ok(Prepared::Ready(record.clone()));
    assert_eq!(prepare().await, serves, "there is no module");

    // What is in its folder cannot even be looked at.
    let modules = folder.path().join("modules");
    fs::remove_dir_all(&modules).expect("removes");
    fs::write(&modules, "no folder").expect("writes");
    assert!(runner.volume.has_module(&module, 1 << 20).is_err());
    assert_eq!(prepare().await, serves);
    fs::remove_file(folder.path().join("artifacts").join(&record.artifact.file)).expect("removes");
    let error = prepare().await.expect_err("nothing is there to serve");
    assert_eq!(error.reason.stage(), Stage::Volume);
}
