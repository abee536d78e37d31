//! No API server answers for a while: policies judge every request that reaches them, and the status is right soon afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis_e2e::{
    Caller, Cluster, Component, IN_TIME, Installation, InstallationOptions, Options, Program, condition, eventually,
    guest_with, one_round_in_time,
};
use serde_json::json;

use crate::assert_denied;

/// How long no API server answers. It is longer than a Lease is valid and pauses between retries grow, so ten minutes would not be different.
const AWAY: Duration = Duration::from_secs(25);

/// The programs of a replica.
pub(crate) const PROGRAMS: [Program; 3] = [Program::Loader, Program::Evaluator, Program::Reporter];

#[test]
#[ignore = "starts a cluster"]
fn fault_r01_direct_calls_are_judged_while_no_api_server_answers_and_the_status_is_right_soon_after() {
    // The test needs a cluster of its own, because it stops the only API server.
    let cluster = &Cluster::start(&Options::default()).unwrap();
    let installation = Installation::start(cluster, InstallationOptions::named("away")).with(2);
    let shop = installation.make_namespace("shop");
    installation.apply_ready(&[installation.cluster_policy("away").denying("judged")]);
    let [webhook] = installation.webhooks().try_into().unwrap();
    let replicas = installation.replicas();
    let callers: Vec<_> = replicas.iter().map(|replica| Caller::new(&installation, &webhook, replica)).collect();
    one_round_in_time(|round| {
        // This policy can be loaded only while its success cannot be reported.
        let name = format!("away-late-{round}");
        let module = format!("/{name}.wasm");
        let late = installation.cluster_policy(&name).on(&["secrets"]).at(&installation.source().url(&module));
        installation.apply(&late).expect("the policy");
        installation.wait_for_object(&late, "two failures", |object| object["status"]["replicaCounts"]["failed"] == 2);

        cluster.stop(Component::ApiServer(1));
        installation.source().put(&module, guest_with("answer", br#"{ "accepted": true }"#));
        let (gone, done, mut turns) = (Instant::now(), AtomicBool::new(false), callers.iter().cycle());
        let heard = installation.listener().hear(IN_TIME, &done, || {
            let verdict = turns.next().unwrap().ask(&shop).unwrap();
            let message = verdict["status"]["message"].as_str().unwrap_or_default();
            assert!(verdict["allowed"] == false && message.contains("policy cluster/away: judged"), "{verdict}");
            done.store(gone.elapsed() >= AWAY, Ordering::SeqCst);
        });
        heard.in_time();
        for replica in &replicas {
            let health = || replica.loopback(Program::Evaluator, &format!("/healthz/policies/cluster/{name}"));
            eventually("the other policy in the evaluator", || health().filter(|(code, _)| *code == 200));
            for program in PROGRAMS {
                eventually("readiness", || replica.probe(program, "/readyz").filter(|(code, _)| *code == 200));
                assert_eq!(replica.restarts(program), 0, "{program} of {}", replica.name());
            }
        }

        cluster.start_again(Component::ApiServer(1));
        let in_time = installation.recovers("a status that is right", || {
            let object = installation.api().get(&late.path())?;
            let is_degraded = condition(&object, "Degraded")?["status"] != "False";
            (object["status"]["replicaCounts"]["current"] == 2 && !is_degraded).then_some(())
        });
        installation.wait_for(&late, "Ready", "True");
        in_time
    });
    assert_denied(&installation.create_pod(&shop, "one", &json!({})), "policy cluster/away: judged");
    assert!(replicas.iter().all(|replica| PROGRAMS.iter().all(|program| replica.restarts(*program) == 0)));
}
