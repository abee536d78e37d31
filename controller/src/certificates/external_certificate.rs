//! A certificate that another program made for the pods. Pure.

use jiff::Timestamp;

use super::bundle::CaBundle;
use super::certificate::Certificate;
use super::decide::Problem;
use super::rules::Rules;
use super::serving::check_key;
use super::stored::{CA_CERTIFICATE, Data, TLS_CERTIFICATE, TLS_KEY};

/// A certificate with key and authorities that a pod can show and that an API server accepts.
#[derive(Debug)]
pub(crate) struct ExternalCertificate {
    leaf: Certificate,
    chain: Vec<Certificate>,
    authorities: CaBundle,
    /// The three texts as they were read.
    data: Data,
}

impl ExternalCertificate {
    /// Reads the data of the other program's Secret; `None` if there is no Secret.
    ///
    /// # Errors
    /// When API servers would not accept a pod that shows it, so pods should keep what they have.
    pub(crate) fn read(data: Option<&Data>, rules: &Rules, now: Timestamp) -> Result<Self, Problem> {
        let data = data.ok_or(Problem::NoServing)?;
        let text = |key: &str| data.get(key).map(|text| text.0.as_slice()).unwrap_or_default();
        let authorities = data.get(CA_CERTIFICATE).ok_or(Problem::NotShown)?;
        let authorities = CaBundle::parse(&authorities.0).map_err(Problem::Shown)?;
        let mut chain =
            Certificate::parse_all(text(TLS_CERTIFICATE)).map_err(|error| Problem::Serving(error.into()))?;
        check_key(&chain, text(TLS_KEY)).map_err(Problem::Serving)?;
        let leaf = chain.remove(0);
        if leaf.not_before > now || leaf.is_over(now) {
            return Err(Problem::OutOfTime { from: leaf.not_before, until: leaf.not_after });
        }
        // The first name is the one that API servers ask for.
        let name = rules.names.first().cloned().unwrap_or_default();
        if !leaf.is_for(std::slice::from_ref(&name)) {
            return Err(Problem::OtherNames(name));
        }
        let keys = [TLS_CERTIFICATE, TLS_KEY, CA_CERTIFICATE];
        let data = keys.iter().filter_map(|key| data.get_key_value(*key));
        let data = data.map(|(key, text)| (key.clone(), text.clone())).collect();
        let offer = Self { leaf, chain, authorities, data };
        // A self-signed certificate is its own authority.
        if !offer.authorities.certificates().contains(&offer.leaf) && !offer.is_of(&offer.authorities) {
            return Err(Problem::OtherAuthority);
        }
        Ok(offer)
    }

    /// Whether one of these authorities signed the certificate.
    pub(crate) fn is_of(&self, authorities: &CaBundle) -> bool {
        authorities.certificates().iter().any(|authority| authority.vouches_for(&self.leaf, &self.chain))
    }

    /// Whether pods were given this certificate.
    pub(crate) fn is(&self, given: Option<&Data>) -> bool {
        given == Some(&self.data)
    }

    /// The authorities that an API server must trust.
    pub(crate) fn authorities(&self) -> &CaBundle {
        &self.authorities
    }

    /// The data of the serving Secret for it.
    pub(crate) fn into_data(self) -> Data {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::super::serving::PairError;
    use super::super::stored::StoredServing;
    use super::*;

    fn authority() -> Authority {
        Authority::make(&rules(), now()).expect("an authority")
    }

    fn data(authority: &Authority, rules: &Rules) -> Data {
        StoredServing::data(&authority.issue(rules, now()).expect("a certificate"), &authority.bundle())
    }

    fn problem(data: &Data) -> Option<Problem> {
        ExternalCertificate::read(Some(data), &rules(), now()).err()
    }

    #[test]
    fn what_somebody_else_made_is_taken_without_what_else_is_there() {
        let one = authority();
        let mut made = data(&one, &rules());
        made.insert("keystore.jks".to_owned(), ByteString(b"noise".to_vec()));
        let offer = ExternalCertificate::read(Some(&made), &rules(), now()).expect("a good one");
        assert_eq!(*offer.authorities(), one.bundle());
        assert!(offer.is_of(&one.bundle()) && !offer.is_of(&authority().bundle()));
        made.remove("keystore.jks");
        assert!(offer.is(Some(&made)) && !offer.is(None));
        assert_eq!(offer.into_data(), made);
    }

    #[test]
    fn one_that_signed_itself_is_its_own_authority() {
        let made = rcgen::generate_simple_self_signed(rules().names).expect("a certificate");
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let texts = [("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &certificate)];
        let data = texts.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())));
        assert_eq!(problem(&data.into()), None);
    }

    #[test]
    fn fault_h17_what_pods_cannot_show_or_api_servers_would_refuse_is_not_taken() {
        let (one, other) = (authority(), authority());
        let with = |key: &str, from: &Data| {
            let mut made = data(&one, &rules());
            made.insert(key.to_owned(), from.get(key).cloned().unwrap_or_default());
            problem(&made)
        };
        let others = data(&other, &rules());
        assert_eq!(with("tls.key", &others), Some(Problem::Serving(PairError::OtherKey)));
        assert_eq!(with("tls.key", &Data::new()), Some(Problem::Serving(PairError::Key)));
        assert!(matches!(with("tls.crt", &Data::new()), Some(Problem::Serving(PairError::Certificate(_)))));
        assert!(matches!(with("ca.crt", &Data::new()), Some(Problem::Shown(_))));
        assert_eq!(with("ca.crt", &others), Some(Problem::OtherAuthority));

        let mut without = data(&one, &rules());
        without.remove("ca.crt");
        assert_eq!(problem(&without), Some(Problem::NotShown));
        assert_eq!(ExternalCertificate::read(None, &rules(), now()).err(), Some(Problem::NoServing));
        let names = Rules { names: vec!["elsewhere.svc".to_owned()], ..rules() };
        assert_eq!(problem(&data(&one, &names)), Some(Problem::OtherNames("guard.gate.svc".to_owned())));
        let made = data(&one, &rules());
        for hours in [-2, 31 * 24] {
            let then = now().checked_add(jiff::SignedDuration::from_hours(hours)).expect("a time");
            let problem = ExternalCertificate::read(Some(&made), &rules(), then).err();
            assert!(matches!(problem, Some(Problem::OutOfTime { .. })), "{problem:?}");
        }
    }
}
