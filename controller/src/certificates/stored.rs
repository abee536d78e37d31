//! How the two Secrets are read and written.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;

use super::authority::{Authority, AuthorityError};
use super::bundle::CaBundle;
use super::certificate::{Certificate, CertificateError};
use super::serving::{Pair, PairError};

/// The data of a Secret.
pub(crate) type Data = BTreeMap<String, ByteString>;

pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const PREVIOUS: &str = "previous.crt";
pub(crate) const TLS_CERTIFICATE: &str = "tls.crt";
pub(crate) const TLS_KEY: &str = "tls.key";

/// The authority's Secret.
#[derive(Default)]
pub(crate) struct StoredAuthority {
    /// The authority with its key; `None` if there is no Secret.
    pub(crate) pair: Option<Result<Authority, AuthorityError>>,
    /// Other authorities that are trusted. If `pair` cannot be used, its certificates are among them as far as they can be read.
    pub(crate) previous: CaBundle,
    /// Why `previous.crt` cannot be read.
    pub(crate) problem: Option<CertificateError>,
}

/// The serving Secret.
#[derive(Default)]
pub(crate) struct StoredServing {
    /// The certificate with its key; `None` if there is no Secret.
    pub(crate) pair: Option<Result<Pair, PairError>>,
    /// The certificate, even if its key cannot be used.
    pub(crate) leaf: Option<Certificate>,
    /// The authorities of `ca.crt`; `None` if it is absent.
    pub(crate) shown: Option<Result<CaBundle, CertificateError>>,
}

impl StoredAuthority {
    /// Reads the data of the Secret.
    pub(crate) fn read(data: Option<&Data>) -> Self {
        let Some(data) = data else { return Self::default() };
        let pair = Authority::parse(bytes(data, CA_CERTIFICATE), bytes(data, CA_KEY));
        let unused = if pair.is_err() { CaBundle::parse(bytes(data, CA_CERTIFICATE)).ok() } else { None };
        let (previous, problem) = match data.get(PREVIOUS).map(|text| CaBundle::parse(&text.0)) {
            Some(Ok(previous)) => (previous, None),
            Some(Err(problem)) => (CaBundle::default(), Some(problem)),
            None => (CaBundle::default(), None),
        };
        Self { pair: Some(pair), previous: unused.unwrap_or_default().and(&previous), problem }
    }

    /// The data of a Secret with this authority, and others that are trusted too.
    pub(crate) fn data(authority: &Authority, previous: &CaBundle) -> Data {
        let mut data = texts([(CA_CERTIFICATE, authority.certificate.pem()), (CA_KEY, authority.key_pem())]);
        if !previous.is_empty() {
            data.extend(texts([(PREVIOUS, previous.pem())]));
        }
        data
    }
}

impl StoredServing {
    /// Reads the data of the Secret.
    pub(crate) fn read(data: Option<&Data>) -> Self {
        let Some(data) = data else { return Self::default() };
        Self {
            pair: Some(Pair::parse(bytes(data, TLS_CERTIFICATE), bytes(data, TLS_KEY))),
            leaf: Certificate::parse_all(bytes(data, TLS_CERTIFICATE)).ok().map(|mut chain| chain.swap_remove(0)),
            shown: data.get(CA_CERTIFICATE).map(|text| CaBundle::parse(&text.0)),
        }
    }

    /// The data of a Secret with this pair and these authorities.
    pub(crate) fn data(pair: &Pair, authorities: &CaBundle) -> Data {
        texts([
            (TLS_CERTIFICATE, pair.certificate_pem()),
            (TLS_KEY, pair.key.clone()),
            (CA_CERTIFICATE, authorities.pem()),
        ])
    }

    /// The authorities of `ca.crt`, as far as they can be read.
    pub(crate) fn shown(&self) -> CaBundle {
        self.shown.as_ref().and_then(|shown| shown.as_ref().ok()).cloned().unwrap_or_default()
    }
}

fn bytes<'d>(data: &'d Data, key: &str) -> &'d [u8] {
    data.get(key).map(|text| text.0.as_slice()).unwrap_or_default()
}

fn texts<const N: usize>(texts: [(&str, String); N]) -> Data {
    texts.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::decide::tests::{now, rules};
    use super::*;

    #[test]
    fn an_authority_is_stored_with_those_before_it() {
        let (new, old) = (Authority::make(&rules(), now()), Authority::make(&rules(), now()));
        let (new, old) = (new.expect("an authority"), old.expect("an authority"));
        let data = StoredAuthority::data(&new, &old.bundle());
        let read = StoredAuthority::read(Some(&data));
        assert!(matches!(read.pair, Some(Ok(read)) if read.certificate == new.certificate));
        assert_eq!((read.previous, read.problem), (old.bundle(), None));
        assert!(!StoredAuthority::data(&new, &CaBundle::default()).contains_key(PREVIOUS));
    }

    #[test]
    fn of_a_broken_pair_the_certificate_is_still_trusted() {
        let authority = Authority::make(&rules(), now()).expect("an authority");
        let mut data = StoredAuthority::data(&authority, &CaBundle::default());
        data.insert(CA_KEY.to_owned(), ByteString(b"noise".to_vec()));
        data.insert(PREVIOUS.to_owned(), ByteString(b"noise".to_vec()));
        let read = StoredAuthority::read(Some(&data));
        assert!(matches!(read.pair, Some(Err(AuthorityError::Key))));
        assert_eq!((read.previous, read.problem), (authority.bundle(), Some(CertificateError::Empty)));
    }

    #[test]
    fn a_secret_without_keys_is_a_broken_one() {
        let empty = Data::new();
        assert!(matches!(StoredAuthority::read(Some(&empty)).pair, Some(Err(AuthorityError::Certificate(_)))));
        let serving = StoredServing::read(Some(&empty));
        assert!(matches!(serving.pair, Some(Err(PairError::Certificate(_)))) && serving.shown.is_none());
        assert!(StoredAuthority::read(None).pair.is_none() && StoredServing::read(None).pair.is_none());
    }
}
