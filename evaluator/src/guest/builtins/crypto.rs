//! `crypto.*`: digests and HMAC, in hexadecimal digits.

use ring::{digest, hmac};

use super::{Arguments, Outcome};

pub(super) fn sha1(arguments: &Arguments) -> Outcome {
    digest_of(arguments, &digest::SHA1_FOR_LEGACY_USE_ONLY)
}

pub(super) fn sha256(arguments: &Arguments) -> Outcome {
    digest_of(arguments, &digest::SHA256)
}

pub(super) fn hmac_sha1(arguments: &Arguments) -> Outcome {
    hmac_of(arguments, hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY)
}

pub(super) fn hmac_sha256(arguments: &Arguments) -> Outcome {
    hmac_of(arguments, hmac::HMAC_SHA256)
}

pub(super) fn hmac_sha512(arguments: &Arguments) -> Outcome {
    hmac_of(arguments, hmac::HMAC_SHA512)
}

/// Not in constant time: the policy has both texts itself, and answers differ by more than their time.
pub(super) fn hmac_equal(arguments: &Arguments) -> Outcome {
    Ok((arguments.text(0)? == arguments.text(1)?).into())
}

fn digest_of(arguments: &Arguments, algorithm: &'static digest::Algorithm) -> Outcome {
    Ok(super::encoding::hex(digest::digest(algorithm, arguments.text(0)?.as_bytes()).as_ref()).into())
}

/// The message comes first, the key second.
fn hmac_of(arguments: &Arguments, algorithm: hmac::Algorithm) -> Outcome {
    let key = hmac::Key::new(algorithm, arguments.text(1)?.as_bytes());
    Ok(super::encoding::hex(hmac::sign(&key, arguments.text(0)?.as_bytes()).as_ref()).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    /// RFC 3174, FIPS 180-2, RFC 2202 and RFC 4231.
    #[test]
    fn known_answers() {
        let of = |name, arguments| run(name, arguments).expect("a digest");
        assert_eq!(of("crypto.sha1", json!(["abc"])), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(
            of("crypto.sha256", json!(["abc"])),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let jefe = json!(["what do ya want for nothing?", "Jefe"]);
        assert_eq!(of("crypto.hmac.sha1", jefe.clone()), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        let sha256 = of("crypto.hmac.sha256", jefe);
        assert_eq!(sha256, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(of("crypto.hmac.equal", json!([sha256, sha256])), json!(true));
        assert_eq!(of("crypto.hmac.equal", json!([sha256, "5b"])), json!(false));
    }
}
