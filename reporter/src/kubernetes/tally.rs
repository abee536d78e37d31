//! Gauges of policies by status: how many have which reason of `Ready` and which status of `Enforced`, and the names of the worst.

use std::collections::BTreeMap;

use portcullis_api::{ConditionType, PolicyStatus, Truth};
use portcullis_contract::PolicyId;
use portcullis_process::gauges;
use prometheus::core::Collector as _;
use prometheus::{IntGaugeVec, Registry};

/// The reasons that alerts are about, the worst first.
const TROUBLES: [&str; 4] = ["Error", "Degraded", "WebhookPending", "ServingPrevious"];
/// Most policies that are named, so that an outage of a registry does not make thousands of series.
const MOST_NAMED: usize = 50;

/// What a status says in the labels of a gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said<'s> {
    /// The reason of `Ready`.
    word: &'s str,
    /// The status of `Enforced`. With `WebhookPending` it tells whether older match rules have the policy called meanwhile.
    enforced: Truth,
}

impl<'s> Said<'s> {
    /// What a status says.
    pub(crate) fn of(status: &'s PolicyStatus) -> Self {
        let enforced = status.condition(ConditionType::Enforced).map_or(Truth::Unknown, |condition| condition.status);
        Self { word: status.word(), enforced }
    }
}

/// The gauges.
#[derive(Clone)]
pub(crate) struct Tally {
    words: IntGaugeVec,
    troubled: IntGaugeVec,
}

impl Tally {
    /// Registers the gauges.
    ///
    /// # Errors
    /// When a name is taken already.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let words = gauges(
            registry,
            "portcullis_reporter_led_policies",
            "Policies by the reason of Ready and the status of Enforced, where this reporter leads",
            &["enforced", "status"],
        )?;
        let troubled = gauges(
            registry,
            "portcullis_reporter_troubled_policies",
            "1 for each policy that an alert may be about, 50 at most, where this reporter leads",
            &["enforced", "policy", "status"],
        )?;
        Ok(Self { words, troubled })
    }

    /// Shows these policies, each with what its status says, and removes the series of all others.
    pub(crate) fn show<'p>(&self, policies: impl Iterator<Item = (&'p PolicyId, Said<'p>)>) {
        let policies: Vec<_> = policies.collect();
        let mut counts: BTreeMap<Vec<String>, i64> = BTreeMap::new();
        for (_, said) in &policies {
            *counts.entry(vec![said.enforced.as_str().to_owned(), said.word.to_owned()]).or_default() += 1;
        }
        let named = troubled(&policies)
            .into_iter()
            .map(|(id, said)| (vec![said.enforced.as_str().to_owned(), id.to_string(), said.word.to_owned()], 1));
        replace(&self.words, &counts);
        replace(&self.troubled, &named.collect());
    }
}

/// The policies to name: those with the worst reasons first, of these those that are not enforced, then in the given order; [`MOST_NAMED`] at
/// most.
fn troubled<'p>(policies: &[(&'p PolicyId, Said<'p>)]) -> Vec<(&'p PolicyId, Said<'p>)> {
    let kinds = TROUBLES.into_iter().flat_map(|trouble| [(trouble, false), (trouble, true)]);
    let of = |kind| policies.iter().filter(move |(_, said)| (said.word, said.enforced == Truth::True) == kind);
    kinds.flat_map(of).take(MOST_NAMED).copied().collect()
}

/// Gives a gauge these series and removes all others. A series that stays is not removed in between, since a pending alert would
/// begin to wait again. Labels are in the order of their names.
fn replace(gauge: &IntGaugeVec, wanted: &BTreeMap<Vec<String>, i64>) {
    let families = gauge.collect();
    for metric in families.iter().flat_map(|family| family.get_metric()) {
        let labels: Vec<_> = metric.get_label().iter().map(|label| label.value().to_owned()).collect();
        if !wanted.contains_key(&labels) {
            // An error would mean that the series is gone already.
            gauge.remove_label_values(&labels).ok();
        }
    }
    for (labels, value) in wanted {
        gauge.with_label_values(labels).set(*value);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn id(name: &str) -> PolicyId {
        format!("cluster/{name}").parse().expect("an id")
    }

    fn said(word: &str, enforced: Truth) -> Said<'_> {
        Said { word, enforced }
    }

    fn series(registry: &Registry) -> Vec<String> {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("is text");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn policies_in_trouble_are_named_until_they_are_well() {
        let registry = Registry::new();
        let tally = Tally::new(&registry).expect("registers");
        let (one, two) = (id("one"), id("two"));
        let (active, error) = (said("Active", Truth::True), said("Error", Truth::False));
        tally.show([(&one, active), (&two, error)].into_iter());
        assert_eq!(
            series(&registry),
            [
                "portcullis_reporter_led_policies{enforced=\"False\",status=\"Error\"} 1",
                "portcullis_reporter_led_policies{enforced=\"True\",status=\"Active\"} 1",
                "portcullis_reporter_troubled_policies{enforced=\"False\",policy=\"cluster/two\",status=\"Error\"} 1",
            ]
        );
        tally.show([(&one, active), (&two, active)].into_iter());
        assert_eq!(series(&registry), ["portcullis_reporter_led_policies{enforced=\"True\",status=\"Active\"} 2"]);
        tally.show(std::iter::empty());
        assert_eq!(series(&registry), [""; 0]);
    }

    #[test]
    fn of_too_many_the_worst_are_named() {
        let ids: Vec<_> = (0..60).map(|number| id(&format!("p{number:02}"))).collect();
        let words = ["ServingPrevious", "Error"].map(|word| said(word, Truth::False));
        let policies = ids.iter().enumerate().map(|(at, id)| (id, words[usize::from(at >= 55)]));
        let named = troubled(&policies.collect::<Vec<_>>());
        assert_eq!(named.len(), MOST_NAMED);
        assert_eq!(named.iter().filter(|(_, said)| said.word == "Error").count(), 5);
        assert_eq!(named[5].0, &ids[0]);
    }

    #[test]
    fn policies_that_older_match_rules_have_called_are_counted_and_named_apart() {
        let registry = Registry::new();
        let tally = Tally::new(&registry).expect("registers");
        let (edited, new) = (id("edited"), id("new"));
        let (older, pending) = (said("WebhookPending", Truth::True), said("WebhookPending", Truth::False));
        tally.show([(&edited, older), (&new, pending)].into_iter());
        let named = "portcullis_reporter_troubled_policies";
        assert_eq!(
            series(&registry),
            [
                "portcullis_reporter_led_policies{enforced=\"False\",status=\"WebhookPending\"} 1".to_owned(),
                "portcullis_reporter_led_policies{enforced=\"True\",status=\"WebhookPending\"} 1".to_owned(),
                format!("{named}{{enforced=\"False\",policy=\"cluster/new\",status=\"WebhookPending\"}} 1"),
                format!("{named}{{enforced=\"True\",policy=\"cluster/edited\",status=\"WebhookPending\"}} 1"),
            ]
        );
        assert_eq!(troubled(&[(&edited, older), (&new, pending)])[0].0, &new, "this one is not asked about requests");
    }
}
