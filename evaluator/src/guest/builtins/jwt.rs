//! `io.jwt.decode`: the contents of a token, of which nothing is checked.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::{Arguments, BuiltinError, Outcome};

/// Longest token, in bytes. What it says may take a hundred times as much memory, and base64 hides how much.
const MAX_TOKEN: usize = 32 << 10;

/// Header, claims, and the signature in hexadecimal digits.
pub(super) fn decode(arguments: &Arguments) -> Outcome {
    let token = arguments.text(0)?;
    if token.len() > MAX_TOKEN {
        return Err(BuiltinError::Form("it is above 32768 bytes"));
    }
    let parts: Vec<&str> = token.split('.').collect();
    let [header, claims, signature] = parts[..] else {
        return Err(BuiltinError::Form("it does not have the three parts of a JWS in compact form"));
    };
    let bytes = |part: &str| {
        let decoded = URL_SAFE_NO_PAD.decode(part.trim_end_matches('='));
        decoded.map_err(|_| BuiltinError::Form("a part is not base64url"))
    };
    let object = |part: &str| -> Outcome {
        let value: Value =
            serde_json::from_slice(&bytes(part)?).map_err(|_| BuiltinError::Form("a part is not JSON"))?;
        Some(value).filter(Value::is_object).ok_or(BuiltinError::Form("a part is not a JSON object"))
    };
    let signature = super::encoding::hex(&bytes(signature)?);
    Ok(Value::Array(vec![object(header)?, object(claims)?, signature.into()]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    #[test]
    fn the_parts_of_a_token() {
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AQI";
        assert_eq!(run("io.jwt.decode", json!([token])), Ok(json!([{"alg": "HS256"}, {"sub": "a"}, "0102"])));
        for odd in ["", "a.b", "a.b.c", "e30.e30.e30.e30", "WzFd.e30.AQI"] {
            assert!(run("io.jwt.decode", json!([odd])).is_err(), "{odd}");
        }
        let long = |length: usize| format!("e30.e30.{}", "A".repeat(length - 8));
        assert!(run("io.jwt.decode", json!([long(32 << 10)])).is_ok());
        assert_eq!(run("io.jwt.decode", json!([long((32 << 10) + 4)])), Err("it is above 32768 bytes".to_owned()));
    }
}
