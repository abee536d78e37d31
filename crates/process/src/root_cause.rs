//! What lies at the bottom of an error.

/// The text of the innermost cause, for instance "Connection refused (os error 111)".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
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
    }
}
