//! Labels in settings.

use portcullis_matching::is_label_name;

/// Reads `KEY=VALUE`.
///
/// # Errors
/// What is wrong with it, as no API server would take an object with this label.
pub(super) fn parse(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("want KEY=VALUE")?;
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if prefix.is_some_and(|prefix| !portcullis_kubernetes::is_object_name(prefix)) {
        return Err(format!("the key {key:?} has a prefix that is not a DNS name: want for instance example.com/name"));
    }
    if !is_label_name(name) {
        return Err(format!(
            "the key {key:?} is not a key of a label: want 1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends, perhaps \
             after a DNS name and a slash"
        ));
    }
    if !value.is_empty() && !is_label_name(value) {
        return Err(format!(
            "{value:?} is no value of a label: want at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_form_that_api_servers_want() {
        let parsed = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(parse("admissions.enforcer/disabled=true"), parsed("admissions.enforcer/disabled", "true"));
        assert_eq!(parse("Team=a_b.c-D"), parsed("Team", "a_b.c-D"));
        assert_eq!(parse("team="), parsed("team", ""));
        for (text, problem) in [
            ("team", "want KEY=VALUE"),
            ("=a", "not a key of a label"),
            ("a/b/c=d", "not a key of a label"),
            ("/a=b", "not a DNS name"),
            ("A.b/c=d", "not a DNS name"),
            ("team=-a", "no value of a label"),
            ("team=a=b", "no value of a label"),
            (&format!("{}=a", "k".repeat(64)), "not a key of a label"),
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.contains(problem), "{text}: {refusal}");
        }
    }
}
