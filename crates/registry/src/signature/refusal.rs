//! Why a signature by a certificate does not count.

/// Why a signature by a certificate does not count. Messages list these beside the required signers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// There is no certificate, or there are several, where there must be exactly one.
    #[error("it does not have exactly one certificate")]
    NotOneCertificate,
    /// The text is not PEM.
    #[error("its certificate is not PEM")]
    NotPem,
    /// An annotation, by its name, is too long to be read.
    #[error("its {name} is longer than {limit} bytes")]
    TooLong {
        /// The annotation.
        name: String,
        /// Its limit, in bytes.
        limit: usize,
    },
    /// The chain is longer than this many certificates.
    #[error("its chain has more than {0} certificates")]
    LongChain(usize),
    /// There are more log entries or timestamps than this.
    #[error("it comes with more than {0} log entries or timestamps")]
    ManyEntries(usize),
    /// There is no entry of a transparency log.
    #[error("no entry of a transparency log comes with it, so that nothing says when it was signed")]
    NotLogged,
    /// The entry of the transparency log has another form.
    #[error("its entry of the transparency log cannot be read")]
    UnreadableEntry,
    /// There is an entry of the transparency log, but the configured trust root cannot be used.
    #[error("its entry of the transparency log cannot be checked without the trust root")]
    UncheckedEntry,
    /// It is in a Sigstore bundle, but a log entry is required, which a bundle cannot provide for a certificate that the policy names.
    #[error(
        "it is in a Sigstore bundle, whose log entry does not count for a certificate that the policy names: sign with cosign's \
         older form (--new-bundle-format=false)"
    )]
    InBundle,
    /// The verifier accepted it without having checked the certificate.
    #[error("its certificate was not checked")]
    Unchecked,
    /// The signature lacks something that shows the signer or the time.
    #[error("{0}")]
    Lacks(&'static str),
    /// The verifier refused it.
    #[error("{0}")]
    Verifier(String),
}
