//! Decides the next step with the certificates. Pure: from the Secrets and the time to one step.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::authority::{Authority, AuthorityError};
use super::bundle::CaBundle;
use super::certificate::{Certificate, CertificateError};
use super::rules::Rules;
use super::serving::{Pair, PairError};
use super::stored::{StoredAuthority, StoredServing};

/// How long to wait before looking again at webhooks that do not trust a new authority yet; they are being changed meanwhile.
pub(super) const SPREADING: Duration = Duration::from_secs(1);

/// What is known besides the Secrets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed<'a> {
    /// The time, by the API server's clock.
    pub(crate) now: Timestamp,
    /// For how long Secrets and webhooks have not changed, by the monotonic clock.
    pub(crate) unchanged: Duration,
    /// Whether every webhook trusts every authority that is in use. Always true for loaders, which follow the serving Secret.
    pub(crate) is_spread: bool,
    /// The authorities that this program last wanted webhooks to trust.
    pub(crate) remembered: &'a CaBundle,
}

/// What to do, and what to report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The authorities that webhooks should trust now.
    pub(crate) bundle: CaBundle,
    /// The next write, if any.
    pub(crate) step: Option<Step>,
    /// When to decide again, if nothing else changes.
    pub(crate) wait: Option<Duration>,
    /// What is wrong with the Secrets.
    pub(crate) problems: Vec<Problem>,
    /// When the certificates expire.
    pub(crate) ends: Vec<(Which, Timestamp)>,
    /// The certificates that should have been renewed and expire soon.
    pub(crate) expiring: Vec<Which>,
}

/// One write of one Secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A new authority takes the place of the stored one.
    MakeAuthority {
        /// Why it is made.
        cause: Cause,
        /// The other authorities that are trusted.
        previous: CaBundle,
    },
    /// The stored authority stays, and the other authorities that are trusted change.
    Trust {
        /// The other authorities that are trusted, all of them.
        previous: CaBundle,
    },
    /// The stored authority issues a new serving certificate.
    IssueServing {
        /// Why it is made.
        cause: Cause,
    },
    /// The serving Secret's `ca.crt` becomes the bundle.
    Show,
    /// The other program's certificate becomes the content of the serving Secret.
    Give,
}

/// Why an authority or a certificate is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is none.
    Absent,
    /// The stored one cannot be used.
    Unusable,
    /// The stored one has expired.
    Ended,
    /// The stored one is not valid yet: it was made while a clock was ahead, or the clocks went back.
    NotYetValid,
    /// A third of the stored one's time is left.
    Due,
    /// The stored one is for other DNS names.
    OtherNames,
    /// The stored one was signed by an authority that is not trusted.
    Untrusted,
    /// The new authority is trusted everywhere.
    Introduced,
}

/// One of the certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Which {
    /// The authority.
    Ca,
    /// The serving certificate.
    Serving,
}

/// What is wrong with what is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    /// The authority's Secret does not hold an authority and its key.
    #[error("{0}")]
    Authority(AuthorityError),
    /// `previous.crt` of the authority's Secret cannot be read.
    #[error("`previous.crt` {0}")]
    Previous(CertificateError),
    /// The serving Secret does not hold a certificate and its key.
    #[error("{0}")]
    Serving(PairError),
    /// `ca.crt` of the serving Secret cannot be read.
    #[error("`ca.crt` {0}")]
    Shown(CertificateError),
    /// Another program makes the certificates, and has not written its Secret.
    #[error(
        "does not exist; the program that makes the certificates must write it, with `tls.crt`, `tls.key` and `ca.crt`"
    )]
    NoServing,
    /// Another program's certificate is not for the name that API servers check.
    #[error("holds a certificate for other names than `{0}`, and is not used")]
    OtherNames(String),
    /// Another program's certificate is not valid now.
    #[error("holds a certificate that is valid from {from} to {until} only, and is not used")]
    OutOfTime {
        /// When it begins to be valid.
        from: Timestamp,
        /// When it expires.
        until: Timestamp,
    },
    /// Another program's certificate was not signed by an authority of its `ca.crt`.
    #[error(
        "holds a `tls.crt` that no authority in `ca.crt` has signed with RSA, Ed25519 or ECDSA of P-256 or P-384, and is not used"
    )]
    OtherAuthority,
    /// Another program's Secret does not have the authority.
    #[error("has no `ca.crt`, so webhooks cannot trust the policy server; use an issuer that writes it")]
    NotShown,
    /// An authority that was made while the clock of an API server was ahead, or the clocks of API servers went back.
    #[error("holds {which} that is not valid before {from}, and is replaced: compare the clocks of the API servers")]
    NotYetValid {
        /// The certificate.
        which: Which,
        /// When it begins to be valid.
        from: Timestamp,
    },
}

impl Problem {
    /// The Secret it is about.
    pub(crate) fn which(&self) -> Which {
        match self {
            Self::Authority(_) | Self::Previous(_) => Which::Ca,
            Self::NotYetValid { which, .. } => *which,
            Self::Serving(_)
            | Self::Shown(_)
            | Self::NoServing
            | Self::OtherNames(_)
            | Self::OutOfTime { .. }
            | Self::OtherAuthority
            | Self::NotShown => Which::Serving,
        }
    }
}

impl Step {
    /// The Secret that it writes.
    pub(crate) fn which(&self) -> Which {
        match self {
            Self::MakeAuthority { .. } | Self::Trust { .. } => Which::Ca,
            Self::IssueServing { .. } | Self::Show | Self::Give => Which::Serving,
        }
    }

    /// The only authority that stays, if the step drops the others. From then on these are not remembered, or they would be trusted again.
    pub(crate) fn kept(&self, stored: &StoredAuthority) -> Option<CaBundle> {
        match (self, &stored.pair) {
            (Self::Trust { previous }, Some(Ok(authority))) if previous.is_empty() => Some(authority.bundle()),
            _ => None,
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ca => "an authority",
            Self::Serving => "a certificate",
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "there was none",
            Self::Unusable => "the old one could not be used",
            Self::Ended => "the old one has expired",
            Self::NotYetValid => "the old one is not valid yet",
            Self::Due => "a third of its time is left",
            Self::OtherNames => "the old one is for other names",
            Self::Untrusted => "the old one was signed by an unknown authority",
            Self::Introduced => "the new authority is trusted everywhere",
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeAuthority { cause, previous } if previous.is_empty() => write!(f, "a new authority: {cause}"),
            Self::MakeAuthority { cause, .. } => write!(f, "a new authority beside the old one: {cause}"),
            Self::Trust { previous } if previous.is_empty() => f.write_str("the old authority is no longer trusted"),
            Self::Trust { .. } => f.write_str("another authority is trusted beside the stored one"),
            Self::IssueServing { cause } => write!(f, "a new serving certificate: {cause}"),
            Self::Show => f.write_str("`ca.crt` has all authorities that are in use"),
            Self::Give => f.write_str("the certificate of the other program, which every webhook trusts now"),
        }
    }
}

/// The authorities that webhooks should have trusted until now and that are no longer stored. Somebody has replaced both Secrets, for instance
/// by those of a backup, and pods show what they had until their kubelets follow.
pub(crate) fn replaced(
    now: Timestamp,
    stored: &StoredAuthority,
    serving: &StoredServing,
    remembered: &CaBundle,
) -> CaBundle {
    let Some(Ok(authority)) = &stored.pair else { return CaBundle::default() };
    in_use(&remembered.without(&authority.bundle().and(&stored.previous)).unexpired(now), serving, now)
}

/// Decides the next step. Authorities that were `replaced` stay trusted and are not stored: what replaced the Secrets may replace them again
/// and again.
pub(crate) fn next(
    observed: &Observed<'_>,
    stored: &StoredAuthority,
    replaced: &CaBundle,
    serving: &StoredServing,
    rules: &Rules,
) -> Decision {
    let mut decision = Decision::new(CaBundle::default());
    decision.problems.extend(stored.problem.clone().map(Problem::Previous));
    if let Some(Err(error)) = &stored.pair {
        decision.problems.push(Problem::Authority(error.clone()));
    }
    if let Some(Err(error)) = &serving.pair {
        decision.problems.push(Problem::Serving(error.clone()));
    }
    let early = |which, one: &Certificate| {
        let from = one.not_before;
        one.is_early(observed.now).then_some(Problem::NotYetValid { which, from })
    };
    let pair = stored.pair.as_ref().and_then(|pair| pair.as_ref().ok());
    decision.problems.extend(pair.and_then(|authority| early(Which::Ca, &authority.certificate)));
    decision.problems.extend(serving.leaf.as_ref().and_then(|leaf| early(Which::Serving, leaf)));
    let authority = match &stored.pair {
        Some(Ok(authority)) if authority.certificate.is_valid(observed.now) => authority,
        other => {
            let cause = match other {
                None => Cause::Absent,
                Some(Err(_)) => Cause::Unusable,
                Some(Ok(authority)) if authority.certificate.is_early(observed.now) => Cause::NotYetValid,
                Some(Ok(_)) => Cause::Ended,
            };
            // Replicas that still show the old serving certificate are trusted through these.
            let stored = pair.map(Authority::bundle).unwrap_or_default().and(&stored.previous);
            let previous = stored.and(&serving.shown()).and(observed.remembered).unexpired(observed.now);
            // Otherwise there would be more and more of them while the clocks of two API servers are far apart.
            let previous = in_use(&previous, serving, observed.now);
            decision.bundle = previous.clone();
            decision.step = Some(Step::MakeAuthority { cause, previous });
            return decision;
        }
    };
    decision.bundle = authority.bundle().and(&stored.previous).and(replaced);
    decision.judge(observed.now, rules, Which::Ca, &authority.certificate);
    if let Some(leaf) = &serving.leaf {
        decision.judge(observed.now, rules, Which::Serving, leaf);
    }
    let now = match &serving.pair {
        // Running replicas have the old certificate, and starting ones are not called before webhooks trust them.
        None | Some(Err(_)) if !observed.is_spread => Now::Wait(Some(SPREADING)),
        None => Now::Do(Step::IssueServing { cause: Cause::Absent }),
        Some(Err(_)) => Now::Do(Step::IssueServing { cause: Cause::Unusable }),
        Some(Ok(pair)) => with_pair(observed, authority, stored, &decision.bundle, pair, serving, rules),
    };
    match now {
        Now::Do(step) => {
            if let Step::Trust { previous } = &step {
                // Webhooks trust it before it is stored, as they may have trusted it until now.
                decision.bundle = decision.bundle.and(previous);
            }
            decision.step = Some(step);
        }
        Now::Wait(wait) => decision.wait = wait,
    }
    decision
}

/// The authorities that are valid already, or have signed the serving certificate.
fn in_use(authorities: &CaBundle, serving: &StoredServing, now: Timestamp) -> CaBundle {
    let chain = serving.pair.as_ref().and_then(|pair| pair.as_ref().ok()).map(|pair| pair.chain.as_slice());
    let vouches =
        |one: &Certificate| serving.leaf.as_ref().is_some_and(|leaf| one.vouches_for(leaf, chain.unwrap_or_default()));
    CaBundle::of(authorities.certificates().iter().filter(|one| !one.is_early(now) || vouches(one)).cloned())
}

/// A step, or the time until one.
pub(super) enum Now {
    Do(Step),
    Wait(Option<Duration>),
}

impl Now {
    /// The step, once nothing has changed for as long as this.
    pub(super) fn after(pause: Duration, observed: &Observed<'_>, step: Step) -> Self {
        match pause.checked_sub(observed.unchanged) {
            Some(left) if !left.is_zero() => Self::Wait(Some(left)),
            _ => Self::Do(step),
        }
    }
}

fn with_pair(
    observed: &Observed<'_>,
    authority: &Authority,
    stored: &StoredAuthority,
    bundle: &CaBundle,
    pair: &Pair,
    serving: &StoredServing,
    rules: &Rules,
) -> Now {
    let issue = |cause| Now::Do(Step::IssueServing { cause });
    if pair.leaf.is_over(observed.now) {
        return issue(Cause::Ended);
    }
    // Most API servers refuse it, as they do one that has expired.
    if pair.leaf.is_early(observed.now) {
        return issue(Cause::NotYetValid);
    }
    let vouches = |one: &&Certificate| one.vouches_for(&pair.leaf, &pair.chain);
    let is_ours = vouches(&&authority.certificate);
    if !is_ours && !stored.previous.certificates().iter().any(|one| vouches(&one)) {
        // The authority's Secret was replaced by hand, or another program made the certificates until now: replicas show a certificate of
        // an authority that is not in the Secret.
        return match serving.shown().and(bundle).certificates().iter().find(vouches) {
            Some(issuer) => {
                let previous = stored.previous.clone().and(&CaBundle::of([issuer.clone()]));
                Now::Do(Step::Trust { previous })
            }
            None => issue(Cause::Untrusted),
        };
    }
    // A certificate of another authority is replaced in any case, once webhooks trust this one.
    if is_ours && !pair.leaf.is_for(&rules.names) {
        return issue(Cause::OtherNames);
    }
    // A new one ends with the authority at the latest. Where that buys no time, another authority is made.
    let is_renewable = pair.leaf.not_after < authority.certificate.not_after;
    if is_ours && is_renewable && pair.leaf.due() <= observed.now {
        return issue(Cause::Due);
    }
    let shown = serving.shown();
    if !(shown.holds(bundle) && bundle.holds(&shown)) {
        return Now::Do(Step::Show);
    }
    if !is_ours {
        return match observed.is_spread {
            true => Now::after(rules.bundle_pause, observed, Step::IssueServing { cause: Cause::Introduced }),
            false => Now::Wait(Some(SPREADING)),
        };
    }
    if !stored.previous.is_empty() {
        return Now::after(rules.replica_pause, observed, Step::Trust { previous: CaBundle::default() });
    }
    let due = authority.certificate.due().min(pair.leaf.due());
    if due <= observed.now {
        return Now::Do(Step::MakeAuthority { cause: Cause::Due, previous: authority.bundle() });
    }
    Now::Wait(Duration::try_from(due.duration_since(observed.now)).ok())
}

impl Decision {
    /// A decision that only says what webhooks should trust.
    pub(crate) fn new(bundle: CaBundle) -> Self {
        Self { bundle, step: None, wait: None, problems: Vec::new(), ends: Vec::new(), expiring: Vec::new() }
    }

    /// Notes when a certificate expires, and whether to warn about it.
    pub(crate) fn judge(&mut self, now: Timestamp, rules: &Rules, which: Which, certificate: &Certificate) {
        self.ends.push((which, certificate.not_after));
        let left = Duration::try_from(certificate.not_after.duration_since(now)).unwrap_or(Duration::ZERO);
        if left <= rules.warning && certificate.due() <= now {
            self.expiring.push(which);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
