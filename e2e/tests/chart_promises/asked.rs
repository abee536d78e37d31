//! `helm test` reports whether the installation works.

use crate::stage::Stage;

#[test]
#[ignore = "starts a cluster"]
fn helm_test_says_that_what_is_installed_works() {
    let stage = Stage::new("helm-test");
    let release = stage.release();
    let name = release.namespace();
    let asked = release.site().helm(["test", name, "--namespace", name, "--logs", "--timeout", "3m"], "");
    let told = asked.expect("the installation works");
    for words in [
        format!("\"lease\":\"portcullis-{name}-controller\""),
        format!("\"lease\":\"portcullis-{name}-reporter\""),
        "an evaluator answers, with the certificate that webhooks trust".to_owned(),
    ] {
        assert!(told.contains(&words), "no {words:?} in\n{told}");
    }
    // It does not leave objects behind.
    let left = release.kubectl(["get", "pods,serviceaccounts,roles,rolebindings", "--output=name"]);
    assert!(!left.expect("a list").contains("portcullis-test"), "{left:?}");
}
