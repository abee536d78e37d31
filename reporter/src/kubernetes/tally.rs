//! Gauges of policies by status: how many have which reason of `Ready`, and the names of the worst.

use std::collections::BTreeMap;

use portcullis_contract::PolicyId;
use portcullis_process::gauges;
use prometheus::core::Collector as _;
use prometheus::{IntGaugeVec, Registry};

/// The reasons that alerts are about, the worst first.
const TROUBLES: [&str; 4] = ["Error", "Degraded", "WebhookPending", "ServingPrevious"];
/// Most policies that are named, so that an outage of a registry does not make thousands of series.
const MOST_NAMED: usize = 50;

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
            "Policies by the reason of Ready, where this reporter leads",
            &["status"],
        )?;
        let troubled = gauges(
            registry,
            "portcullis_reporter_troubled_policies",
            "1 for each policy that an alert may be about, 50 at most, where this reporter leads",
            &["policy", "status"],
        )?;
        Ok(Self { words, troubled })
    }

    /// Shows these policies, each with the reason of its `Ready`, and removes the series of all others.
    pub(crate) fn show<'p>(&self, policies: impl Iterator<Item = (&'p PolicyId, &'p str)>) {
        let policies: Vec<_> = policies.collect();
        let mut counts: BTreeMap<Vec<String>, i64> = BTreeMap::new();
        for (_, word) in &policies {
            *counts.entry(vec![(*word).to_owned()]).or_default() += 1;
        }
        let named = troubled(&policies).into_iter().map(|(id, word)| (vec![id.to_string(), word.to_owned()], 1));
        replace(&self.words, &counts);
        replace(&self.troubled, &named.collect());
    }
}

/// The policies to name: those with the worst reasons first, then in the given order; [`MOST_NAMED`] at most.
fn troubled<'p>(policies: &[(&'p PolicyId, &'p str)]) -> Vec<(&'p PolicyId, &'p str)> {
    let of = |trouble: &'static str| policies.iter().filter(move |(_, word)| *word == trouble);
    TROUBLES.into_iter().flat_map(of).take(MOST_NAMED).copied().collect()
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

    fn series(registry: &Registry) -> Vec<String> {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("is text");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn policies_in_trouble_are_named_until_they_are_well() {
        let registry = Registry::new();
        let tally = Tally::new(&registry).expect("registers");
        let (one, two) = (id("one"), id("two"));
        tally.show([(&one, "Active"), (&two, "Error")].into_iter());
        assert_eq!(
            series(&registry),
            [
                "portcullis_reporter_led_policies{status=\"Active\"} 1",
                "portcullis_reporter_led_policies{status=\"Error\"} 1",
                "portcullis_reporter_troubled_policies{policy=\"cluster/two\",status=\"Error\"} 1",
            ]
        );
        tally.show([(&one, "Active"), (&two, "Active")].into_iter());
        assert_eq!(series(&registry), ["portcullis_reporter_led_policies{status=\"Active\"} 2"]);
        tally.show(std::iter::empty());
        assert_eq!(series(&registry), [""; 0]);
    }

    #[test]
    fn of_too_many_the_worst_are_named() {
        let ids: Vec<_> = (0..60).map(|number| id(&format!("p{number:02}"))).collect();
        let words = ids.iter().enumerate().map(|(at, id)| (id, if at < 55 { "ServingPrevious" } else { "Error" }));
        let named = troubled(&words.collect::<Vec<_>>());
        assert_eq!(named.len(), MOST_NAMED);
        assert_eq!(named.iter().filter(|(_, word)| *word == "Error").count(), 5);
        assert_eq!(named[5].0, &ids[0]);
    }
}
