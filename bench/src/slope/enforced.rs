//! Checks that a variant is in place and works correctly, before anything is measured.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Map, Value};
use tokio::task::block_in_place;

use super::samples::{privileged, samples};
use super::site::{Answer, Site};
use super::variant::Variant;

/// How long it may take until API servers know of a variant, or notice that it is gone.
const LIMIT: Duration = Duration::from_secs(120);
/// The interval at which this is checked.
const LOOK: Duration = Duration::from_millis(300);

/// Waits until every policy judges what it should, and tries the samples. Returns what is wrong if that does not happen
/// in time.
///
/// # Errors
/// When a sample is admitted that should be denied, or the other way round: then the rules are not the same.
pub(super) async fn wait(site: &Site<'_>, variant: Variant) -> anyhow::Result<Option<String>> {
    if variant != Variant::None {
        let start = Instant::now();
        let matched = site.scenario.matched(site.policies());
        for (pod, expected) in [(site.denied_by_all(), site.policies()), (privileged(&Map::new()), matched)] {
            if let Some(problem) = wait_judged(site, variant, &pod, expected.into(), start).await? {
                return Ok(Some(problem));
            }
        }
    }
    for sample in samples() {
        let is_denied = sample.is_denied && variant != Variant::None;
        let expected = if is_denied { Answer::Denied } else { Answer::Admitted };
        match site.create(&sample.pod).await {
            Answer::Failed(problem) => return Ok(Some(problem)),
            answer => {
                ensure!(answer == expected, "{variant}: {} is {answer:?}, and not {expected:?}", sample.what);
            }
        }
    }
    Ok(None)
}

/// Waits until a pod is denied by this many policies.
async fn wait_judged(
    site: &Site<'_>,
    variant: Variant,
    pod: &Value,
    expected: u64,
    start: Instant,
) -> anyhow::Result<Option<String>> {
    loop {
        let before = block_in_place(|| site.denials(variant))?;
        let answer = site.create(pod).await;
        let denials = block_in_place(|| site.denials(variant))?.saturating_sub(before);
        if denials == expected && answer == Answer::Denied {
            return Ok(None);
        }
        if start.elapsed() > LIMIT {
            return Ok(Some(format!("{denials} of {expected} policies deny a pod, which is {answer:?}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until no policy judges any pod.
pub(super) async fn wait_gone(site: &Site<'_>) -> anyhow::Result<()> {
    let (start, pod) = (Instant::now(), site.denied_by_all());
    loop {
        let answer = site.create(&pod).await;
        if answer == Answer::Admitted {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "a pod is {answer:?} though all rules were taken away");
        tokio::time::sleep(LOOK).await;
    }
}
