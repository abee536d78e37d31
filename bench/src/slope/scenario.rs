//! Which policies match, and through which match parts. Pure.
//!
//! Policies are counted from 0, and the form of a policy does not depend on how many there are: a step with more policies
//! only adds some.

use std::collections::BTreeSet;
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The most different match parts. More would be unusual for an installation, as match parts are by resource, namespace or team. It
/// is a multiple of [`ONE_IN`], so that either all policies that share a part match, or none.
const MOST_PARTS: u32 = 100;
/// One policy in this many matches, in scenarios where not all match.
const ONE_IN: u32 = 10;

/// How alike the match parts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Parts {
    /// All policies that match share a match part, and so do all others.
    Same,
    /// Each policy has a match part of its own, up to 100; further policies share these.
    Different,
    /// As `different`, but all share one webhook (the chart's `controller.sharedWebhooks`).
    Shared,
}

/// Which policies match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Matching {
    /// Every policy matches the pod.
    All,
    /// One policy in ten matches the pod, and at least one.
    OneInTen,
}

/// The properties of the policies of one curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) parts: Parts,
    pub(super) matching: Matching,
}

impl Scenario {
    /// All combinations of these, each once.
    pub(super) fn all(parts: &[Parts], matching: &[Matching]) -> Vec<Self> {
        let mut all = Vec::new();
        for &parts in parts {
            for &matching in matching {
                let scenario = Self { parts, matching };
                if !all.contains(&scenario) {
                    all.push(scenario);
                }
            }
        }
        all
    }

    /// How many of the first `policies` match.
    pub(super) fn matched(self, policies: u32) -> u32 {
        match self.matching {
            Matching::All => policies,
            Matching::OneInTen => policies.div_ceil(ONE_IN),
        }
    }

    /// How many match parts the first `policies` have.
    fn match_parts(self, policies: u32) -> usize {
        (0..policies).map(|number| self.part(number)).collect::<BTreeSet<_>>().len()
    }

    /// Whether policies of different match parts share a webhook.
    pub(super) fn is_shared(self) -> bool {
        self.parts == Parts::Shared
    }

    /// How many webhooks the first `policies` have.
    pub(super) fn webhooks(self, policies: u32) -> usize {
        if self.is_shared() { 1 } else { self.match_parts(policies) }
    }

    /// The object selector in a policy's match part. A policy that matches does so because the pod lacks a label.
    pub(super) fn object_selector(self, number: u32) -> Value {
        let operator = if self.is_matching(number) { "DoesNotExist" } else { "Exists" };
        json!({"matchExpressions": [{"key": label(self.part(number)), "operator": operator}]})
    }

    /// The labels with which a pod is matched by all of the first `policies`.
    pub(super) fn labels_for_all(self, policies: u32) -> Map<String, Value> {
        let others = (0..policies).filter(|number| !self.is_matching(*number));
        others.map(|number| (label(self.part(number)), json!("yes"))).collect()
    }

    fn is_matching(self, number: u32) -> bool {
        self.matching == Matching::All || number.is_multiple_of(ONE_IN)
    }

    fn part(self, number: u32) -> u32 {
        match self.parts {
            Parts::Same => u32::from(!self.is_matching(number)),
            Parts::Different | Parts::Shared => number % MOST_PARTS,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self.parts {
            Parts::Same => "same match parts",
            Parts::Different => "different match parts",
            Parts::Shared => "different match parts in a shared webhook",
        };
        let matching = match self.matching {
            Matching::All => "all match",
            Matching::OneInTen => "one in ten matches",
        };
        write!(f, "{parts}, {matching}")
    }
}

fn label(part: u32) -> String {
    format!("slope-part-{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [u32; 5] = [1, 10, 64, 100, 1000];

    fn scenario(parts: Parts, matching: Matching) -> Scenario {
        Scenario { parts, matching }
    }

    fn is_selected(selector: &Value, labels: &Map<String, Value>) -> bool {
        let expression = &selector["matchExpressions"][0];
        let is_there = labels.contains_key(expression["key"].as_str().expect("a key"));
        is_there == (expression["operator"] == "Exists")
    }

    #[test]
    fn each_combination_is_measured_once() {
        let all = Scenario::all(&[Parts::Same, Parts::Different, Parts::Same], &[Matching::OneInTen, Matching::All]);
        assert_eq!(all.len(), 4);
        assert_eq!(all[0], scenario(Parts::Same, Matching::OneInTen));
        assert_eq!(all[0].to_string(), "same match parts, one in ten matches");
    }

    #[test]
    fn one_policy_in_ten_matches_and_at_least_one() {
        let matched = |matching| STEPS.map(|policies| scenario(Parts::Same, matching).matched(policies));
        assert_eq!(matched(Matching::All), STEPS);
        assert_eq!(matched(Matching::OneInTen), [1, 1, 7, 10, 100]);
    }

    #[test]
    fn match_parts_are_one_or_two_or_a_hundred_at_most() {
        let parts = |parts, matching| STEPS.map(|policies| scenario(parts, matching).match_parts(policies));
        assert_eq!(parts(Parts::Same, Matching::All), [1; 5]);
        assert_eq!(parts(Parts::Same, Matching::OneInTen), [1, 2, 2, 2, 2]);
        assert_eq!(parts(Parts::Different, Matching::All), [1, 10, 64, 100, 100]);
        assert_eq!(parts(Parts::Different, Matching::OneInTen), [1, 10, 64, 100, 100]);
    }

    #[test]
    fn shared_webhooks_are_one() {
        let webhooks = |parts| STEPS.map(|policies| scenario(parts, Matching::All).webhooks(policies));
        assert_eq!(webhooks(Parts::Shared), [1; 5]);
        assert_eq!(webhooks(Parts::Different), [1, 10, 64, 100, 100]);
    }

    #[test]
    fn a_pod_is_matched_by_as_many_as_said_and_one_with_the_labels_by_all() {
        for scenario in
            Scenario::all(&[Parts::Same, Parts::Different, Parts::Shared], &[Matching::All, Matching::OneInTen])
        {
            for policies in STEPS {
                let labels = scenario.labels_for_all(policies);
                let selected = |labels: &Map<String, Value>| {
                    (0..policies).filter(|number| is_selected(&scenario.object_selector(*number), labels)).count()
                };
                assert_eq!(selected(&Map::new()), scenario.matched(policies) as usize, "{scenario}, {policies}");
                assert_eq!(selected(&labels), policies as usize, "{scenario}, {policies}");
            }
        }
    }
}
