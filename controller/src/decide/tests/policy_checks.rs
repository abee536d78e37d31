//! The webhook with which API servers ask about policies that users apply.

use super::*;
use crate::desired::check_webhook;
use crate::world::check_webhook_name;

impl Stage {
    /// A stage whose API servers should ask about policies.
    fn checking() -> Self {
        let mut stage = Self::new();
        stage.rules.check_timeout = Some(10);
        stage
    }

    /// Adds the webhook as it should be now.
    fn check_webhook(&mut self) {
        let installation = self.rules.installation.clone().expect("an installation");
        let mut object = check_webhook(&installation, 10).object();
        object["metadata"]["uid"] = json!("uid-of-checks");
        self.take(Collection::Webhooks(WebhookKind::Validating), object);
    }

    fn edit_check_webhook(&mut self, edit: impl FnOnce(&mut crate::world::WebhookView)) {
        let key = (WebhookKind::Validating, check_webhook_name("default"));
        edit(self.world.webhooks.get_mut(&key).expect("the webhook"));
    }
}

#[test]
fn the_webhook_that_checks_policies_is_registered_once_authority_and_key_are_known() {
    let mut stage = Stage::checking();
    let installation = stage.rules.installation.clone();
    stage.rules.installation = Err(ConditionValue::not_configured("CABundleInvalid", "none yet"));
    assert_eq!(stage.actions(), NOTHING);
    stage.rules.installation = installation;
    assert_eq!(stage.actions(), ["register checks"]);
    stage.check_webhook();
    assert_eq!(stage.actions(), NOTHING);
}

#[test]
fn the_webhook_that_checks_policies_follows_authority_key_of_paths_and_timeout() {
    let mut stage = Stage::checking();
    stage.check_webhook();
    assert_eq!(stage.actions(), NOTHING);
    if let Ok(installation) = &mut stage.rules.installation {
        installation.ca_bundle = Arc::new("another".into());
    }
    assert_eq!(stage.actions(), ["change checks"]);
    stage.check_webhook();
    assert_eq!(stage.actions(), NOTHING);
    if let Ok(installation) = &mut stage.rules.installation {
        installation.path_key = PathKey::Secret([7; 32]);
    }
    assert_eq!(stage.actions(), ["change checks"]);
    stage.check_webhook();
    assert_eq!(stage.actions(), NOTHING);
    stage.rules.check_timeout = Some(20);
    assert_eq!(stage.actions(), ["change checks"]);
}

#[test]
fn an_edit_of_the_webhook_that_checks_policies_is_undone() {
    let mut stage = Stage::checking();
    stage.check_webhook();
    assert_eq!(stage.actions(), NOTHING);
    stage.edit_check_webhook(|webhook| webhook.entries = Arc::new(json!([])));
    assert_eq!(stage.actions(), ["change checks back"]);
    stage.check_webhook();
    stage.edit_check_webhook(|webhook| webhook.labels.clear());
    assert_eq!(stage.actions(), ["change checks"]);
    stage.world.webhooks.clear();
    assert_eq!(stage.actions(), ["register checks again"]);
}

#[test]
fn the_webhook_that_checks_policies_goes_when_checks_are_off_and_no_other_of_its_name() {
    let mut stage = Stage::checking();
    stage.check_webhook();
    assert_eq!(stage.actions(), NOTHING);
    stage.rules.check_timeout = None;
    assert_eq!(stage.actions(), ["unregister"]);
    stage.rules.installation = Err(ConditionValue::not_configured("Unknown", "not known yet"));
    assert_eq!(stage.actions(), ["unregister"], "nothing needs to be known for that");
    stage.edit_check_webhook(|webhook| webhook.labels.clear());
    assert_eq!(stage.actions(), NOTHING, "not ours");
}

#[test]
fn the_webhook_that_checks_policies_is_apart_from_those_of_groups() {
    let mut stage = Stage::checking();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    stage.check_webhook();
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
    stage.put(policy("a").deleting());
    let actions = stage.decide();
    let deleted: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::DeleteWebhook { name, .. } => Some(name.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(deleted, [crate::world::webhook_name("default", &stage.group(&policy("a")))]);
}
