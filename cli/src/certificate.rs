//! A certificate authority and a server certificate of our own, for TLS without a cluster.
//!
//! Both are kept and used again in later runs, so that a client needs to trust the authority only once. What was made is
//! remembered in `made.json`, so that no certificate has to be parsed.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use portcullis_process::files;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// How long a server certificate is valid.
const VALID: SignedDuration = SignedDuration::from_hours(24 * 365);
/// How long an authority is valid.
const AUTHORITY_VALID: SignedDuration = SignedDuration::from_hours(24 * 3650);
/// A certificate that expires within this time is replaced.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// Largest file that is read, in bytes.
const LARGEST: u64 = 64 << 10;
/// The authority's certificate, beside the server's, for clients.
pub const AUTHORITY_FILE: &str = "ca.crt";

/// What was made, and until when it is valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    authority_ends: Timestamp,
    ends: Timestamp,
    names: Vec<String>,
}

/// What has to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    Certificate,
    Everything,
}

/// Makes `tls.crt`, `tls.key` and `ca.crt` in the TLS folder if they are missing, expire soon, or are for other names.
///
/// # Errors
/// When a file cannot be written or no certificate can be made.
pub fn ensure(layout: &Layout, address: IpAddr, now: Timestamp) -> anyhow::Result<()> {
    let names = names(address);
    let key_path = layout.authority.join("ca.key");
    let files = [layout.tls.join("tls.crt"), layout.tls.join("tls.key"), layout.tls.join(AUTHORITY_FILE)];
    let made_path = layout.authority.join("made.json");
    let read = |path: &Path| files::read_regular(path, LARGEST).ok();
    let made = read(&made_path).and_then(|bytes| serde_json::from_slice::<Made>(&bytes).ok());
    let authority_key = read(&key_path).and_then(|bytes| KeyPair::from_pem(&String::from_utf8(bytes).ok()?).ok());
    let has_authority = authority_key.is_some() && files[2].is_file();
    let has_certificate = files[0].is_file() && files[1].is_file();
    let need = need(made.as_ref(), has_authority, has_certificate, &names, now);
    if need == Need::Nothing {
        return Ok(());
    }
    let (key, authority_ends) = match (authority_key, made) {
        (Some(key), Some(made)) if need == Need::Certificate => (key, made.authority_ends),
        _ => {
            let (key, ends) = (KeyPair::generate()?, now + AUTHORITY_VALID);
            let certificate = authority(now, ends)?.self_signed(&key)?;
            private(&key_path, &key.serialize_pem())?;
            files::publish(&files[2], certificate.pem().as_bytes())?;
            (key, ends)
        }
    };
    let ends = now + VALID;
    // A signature needs only the authority's name and key, so its certificate is not read back.
    let issuer = Issuer::new(authority(now, authority_ends)?, key);
    let server_key = KeyPair::generate()?;
    let certificate = server(&names, now, ends)?.signed_by(&server_key, &issuer)?;
    private(&files[1], &server_key.serialize_pem())?;
    files::publish(&files[0], certificate.pem().as_bytes())?;
    let made = serde_json::to_vec(&Made { authority_ends, ends, names })?;
    files::publish(&made_path, &made)?;
    Ok(())
}

fn need(made: Option<&Made>, has_authority: bool, has_certificate: bool, names: &[String], now: Timestamp) -> Need {
    let Some(made) = made.filter(|_| has_authority) else { return Need::Everything };
    // The certificate must not outlive its authority.
    if made.authority_ends < now + VALID + RENEW_BEFORE {
        return Need::Everything;
    }
    let covers = names.iter().all(|name| made.names.contains(name));
    if has_certificate && covers && made.ends > now + RENEW_BEFORE { Need::Nothing } else { Need::Certificate }
}

/// The names under which the server may be called.
fn names(address: IpAddr) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
    names.extend(Some(host).filter(|_| is_name));
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    names.sort();
    names.dedup();
    names
}

fn authority(now: Timestamp, ends: Timestamp) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "portcullis run, on this machine only");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, ends)?;
    Ok(params)
}

fn server(names: &[String], now: Timestamp, ends: Timestamp) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "portcullis");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, ends)?;
    Ok(params)
}

/// Makes it valid from yesterday, as clocks differ, to the day of `ends`.
fn set_validity(params: &mut CertificateParams, now: Timestamp, ends: Timestamp) -> anyhow::Result<()> {
    let day = |time: Timestamp| -> anyhow::Result<_> {
        let date = time.to_zoned(jiff::tz::TimeZone::UTC).date();
        let (month, day) = (u8::try_from(date.month())?, u8::try_from(date.day())?);
        Ok(date_time_ymd(i32::from(date.year()), month, day))
    };
    params.not_before = day(now - SignedDuration::from_hours(24))?;
    params.not_after = day(ends)?;
    Ok(())
}

/// Writes a key so that only this user can ever read it.
fn private(path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = files::temporary_beside(path);
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&temporary, path)
    };
    write().with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn what_is_good_is_kept_and_what_is_near_its_end_is_renewed() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::of(dir.path());
        layout.make().expect("makes");
        let read = |name: &str| fs::read_to_string(layout.tls.join(name)).expect("is there");
        let make = |now: &str| {
            ensure(&layout, IpAddr::from([127, 0, 0, 1]), time(now)).expect("makes");
            (read("tls.crt"), read("ca.crt"))
        };
        let first = make("2026-01-01T00:00:00Z");
        assert_eq!(make("2026-11-01T00:00:00Z"), first);
        let renewed = make("2026-12-15T00:00:00Z");
        assert!(renewed.0 != first.0 && renewed.1 == first.1, "the authority stays");
        let later = make("2035-06-01T00:00:00Z");
        assert!(later.1 != first.1, "an authority near its end is replaced");
        for key in [layout.tls.join("tls.key"), layout.authority.join("ca.key")] {
            let mode = fs::metadata(key).expect("is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn another_address_or_a_lost_file_makes_a_new_certificate() {
        let made = Made {
            authority_ends: time("2036-01-01T00:00:00Z"),
            ends: time("2027-01-01T00:00:00Z"),
            names: names(IpAddr::from([127, 0, 0, 1])),
        };
        let now = time("2026-01-01T00:00:00Z");
        let need = |has_certificate, address: [u8; 4]| {
            need(Some(&made), true, has_certificate, &names(IpAddr::from(address)), now)
        };
        assert_eq!(need(true, [127, 0, 0, 1]), Need::Nothing);
        assert_eq!(need(true, [0, 0, 0, 0]), Need::Nothing);
        assert_eq!(need(true, [192, 0, 2, 1]), Need::Certificate);
        assert_eq!(need(false, [127, 0, 0, 1]), Need::Certificate);
        assert_eq!(super::need(None, true, true, &[], now), Need::Everything);
    }
}
