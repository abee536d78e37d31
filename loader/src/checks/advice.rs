//! Advice for the author of a policy, apart from whether it loads: rules that match nothing, and a webhook that a small change would save.

use portcullis_contract::{MatchPart, PolicyId};

use super::discovery::Discovery;
use super::served::Served;
use super::{rules, webhook};
use crate::input::Desired;

/// The advice for a policy with this match part and id, a sentence each.
pub(super) async fn advice(
    part: &MatchPart,
    id: &PolicyId,
    discovery: &Discovery,
    desired: &Desired,
    shares_webhooks: bool,
) -> Vec<String> {
    let mut found = unmatched(part, discovery).await;
    let snapshot = desired.borrow().clone();
    found.extend(snapshot.and_then(|snapshot| webhook::added(part, id, &snapshot.matched, shares_webhooks)));
    found
}

async fn unmatched(part: &MatchPart, discovery: &Discovery) -> Vec<String> {
    let find = |served: &Served| rules::unmatched(&part.rules, part.namespace.is_some(), served);
    let Some(served) = discovery.known().await else { return Vec::new() };
    if find(&served).is_empty() {
        return Vec::new();
    }
    // The answer may be old: a resource that has been added since must not be reported as missing.
    discovery.fresh().await.map(|served| find(&served)).unwrap_or_default()
}
