//! Markers: how the controller learns that an API server calls a group's webhook (docs/design/overview.md, section 7).
//!
//! The controller sends an API server a change for which it calls only a webhook of the controller's own, and the evaluator answers
//! with a denial that names the group. When that denial comes back, the API server has called the webhook.

use crate::GroupId;

/// The first segment of the path that is called: `/marker/<group>`, or with a key `/marker/<group>/<code>`
/// ([`crate::PathKey`]).
pub const MARKER_PATH: &str = "marker";

/// The evaluator's answer to a marker of a group that it knows.
pub fn marker_message(group: &GroupId) -> String {
    format!("portcullis marker {group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_group() {
        let group = "0123456789abcdef".parse().expect("a group");
        assert_eq!(marker_message(&group), "portcullis marker 0123456789abcdef");
    }
}
