//! An error with its causes, and the innermost of them.

/// The text of the innermost cause, for instance "Connection refused (os error 111)".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}

/// The text of an error and its causes, each once.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_innermost_cause_is_told() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to connect")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::from_raw_os_error(111));
        assert_eq!(root_cause(&error), "Connection refused (os error 111)");
        assert_eq!(causes(&error), "failed to connect: Connection refused (os error 111)");
    }
}
