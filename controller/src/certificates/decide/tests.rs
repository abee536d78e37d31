mod near_the_end;

use jiff::SignedDuration;

use super::*;

pub(crate) fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("a time")
}

/// An authority of 90 days, serving certificates of 30, and pauses of 10 s and 60 s.
pub(crate) fn rules() -> Rules {
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    Rules {
        purpose: super::super::rules::Purpose::Webhooks,
        names: vec!["guard.gate.svc".to_owned(), "guard.gate.svc.cluster.local".to_owned()],
        policy_server: "default".to_owned(),
        ca_lifetime: days(90),
        serving_lifetime: days(30),
        bundle_pause: Duration::from_secs(10),
        replica_pause: Duration::from_secs(60),
        warning: days(30),
    }
}

/// Two Secrets and the program that looks at them. A step is done as the keeper does it.
struct World {
    rules: Rules,
    now: Timestamp,
    unchanged: Duration,
    is_spread: bool,
    remembered: CaBundle,
    /// For how long authorities that are remembered have been missing.
    missing: Duration,
    authority: Option<super::super::stored::Data>,
    serving: Option<super::super::stored::Data>,
}

impl World {
    fn empty() -> Self {
        Self {
            rules: rules(),
            now: now(),
            unchanged: Duration::ZERO,
            is_spread: true,
            remembered: CaBundle::default(),
            missing: Duration::ZERO,
            authority: None,
            serving: None,
        }
    }

    /// The state some minutes after the installation.
    fn settled() -> Self {
        let mut world = Self::empty();
        world.run();
        world
    }

    fn authority(&self) -> StoredAuthority {
        StoredAuthority::read(self.authority.as_ref())
    }

    fn current(&self) -> Authority {
        self.authority().pair.expect("a Secret").expect("an authority")
    }

    fn serving(&self) -> StoredServing {
        StoredServing::read(self.serving.as_ref())
    }

    fn leaf(&self) -> Certificate {
        self.serving().leaf.expect("a certificate")
    }

    fn decide(&self) -> Decision {
        let Self { now, unchanged, is_spread, remembered, .. } = self;
        let observed = Observed { now: *now, unchanged: *unchanged, is_spread: *is_spread, remembered };
        let (authority, serving) = (self.authority(), self.serving());
        let replaced = match self.missing < self.rules.replica_pause {
            true => replaced(*now, &authority, &serving, remembered),
            false => CaBundle::default(),
        };
        next(&observed, &authority, &replaced, &serving, &self.rules)
    }

    fn forward(&mut self, time: SignedDuration) {
        self.now = self.now.checked_add(time).expect("a time");
        self.unchanged = Duration::try_from(time).expect("a time that passes");
    }

    /// Does the next step, which must exist.
    fn step(&mut self) -> Step {
        let decision = self.decide();
        let step = decision.step.expect("a step");
        self.remembered = step.kept(&self.authority()).unwrap_or_else(|| decision.bundle.clone());
        match &step {
            Step::MakeAuthority { previous, .. } => {
                let authority = Authority::make(&self.rules, self.now).expect("an authority");
                self.authority = Some(StoredAuthority::data(&authority, previous));
            }
            Step::Trust { previous } => self.authority = Some(StoredAuthority::data(&self.current(), previous)),
            Step::IssueServing { .. } => {
                let pair = self.current().issue(&self.rules, self.now).expect("a certificate");
                self.serving = Some(StoredServing::data(&pair, &decision.bundle));
            }
            Step::Show => {
                let pair = self.serving().pair.expect("a Secret").expect("a pair");
                self.serving = Some(StoredServing::data(&pair, &decision.bundle));
            }
            Step::Give => panic!("nobody else makes certificates here"),
        }
        self.unchanged = Duration::ZERO;
        step
    }

    /// Does steps until none is left at this time.
    fn run(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while self.decide().step.is_some() {
            assert!(steps.len() < 10, "there is no end: {steps:?}");
            steps.push(self.step());
        }
        steps
    }
}

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

fn issues(cause: Cause) -> Step {
    Step::IssueServing { cause }
}

#[test]
fn the_first_time_both_are_made() {
    let mut world = World::empty();
    let previous = CaBundle::default();
    assert_eq!(world.run(), [Step::MakeAuthority { cause: Cause::Absent, previous }, issues(Cause::Absent)]);
    let decision = world.decide();
    assert_eq!(decision.bundle, world.current().bundle());
    assert_eq!(world.serving().shown(), decision.bundle);
    assert_eq!((decision.problems, decision.expiring), (vec![], vec![]));
    assert!(decision.wait.is_some_and(|wait| wait > Duration::from_secs(19 * 24 * 3600)), "{:?}", decision.wait);
}

#[test]
fn a_serving_certificate_is_renewed_when_a_third_is_left() {
    let mut world = World::settled();
    let before = world.leaf();
    world.forward(days(19));
    assert_eq!(world.run(), []);
    world.forward(days(2));
    assert_eq!(world.run(), [issues(Cause::Due)]);
    assert_ne!(world.leaf(), before);
    assert!(world.current().certificate.vouches_for(&world.leaf(), &[]));
}

#[test]
fn an_authority_is_replaced_with_overlap() {
    let mut world = World::settled();
    let old = world.current();
    for _ in 0..2 {
        world.forward(days(20));
        assert_eq!(world.run(), [issues(Cause::Due)]);
    }
    world.forward(days(21));
    let made = Step::MakeAuthority { cause: Cause::Due, previous: old.bundle() };
    assert_eq!(world.run(), [issues(Cause::Due), made, Step::Show]);
    let new = world.current();
    let both = new.bundle().and(&old.bundle());
    let leaf = world.leaf();
    assert!(old.certificate.vouches_for(&leaf, &[]), "the old serving certificate stays in use");
    assert_eq!((world.decide().bundle, world.serving().shown()), (both.clone(), both.clone()));

    // Webhooks must trust the new authority first, and then a pause must pass.
    world.is_spread = false;
    world.forward(days(1));
    assert_eq!((world.decide().step, world.decide().wait), (None, Some(SPREADING)));
    world.is_spread = true;
    world.unchanged = Duration::from_secs(4);
    assert_eq!((world.decide().step, world.decide().wait), (None, Some(Duration::from_secs(6))));
    world.unchanged = Duration::from_secs(10);
    assert_eq!(world.step(), issues(Cause::Introduced));
    assert!(new.certificate.vouches_for(&world.leaf(), &[]));
    assert_eq!(world.decide().bundle, both, "replicas may still show the old certificate");

    world.unchanged = Duration::from_secs(59);
    assert_eq!((world.decide().step, world.decide().wait), (None, Some(Duration::from_secs(1))));
    world.unchanged = Duration::from_secs(60);
    assert_eq!(world.run(), [Step::Trust { previous: CaBundle::default() }, Step::Show]);
    assert_eq!((world.decide().bundle, world.serving().shown()), (new.bundle(), new.bundle()));
    assert!(world.decide().wait.is_some());
}

#[test]
fn fault_w12_a_deleted_authority_is_made_again_with_overlap() {
    let mut world = World::settled();
    let (old, leaf) = (world.current(), world.leaf());
    world.authority = None;
    // Even a controller that has just started, and remembers nothing, does so.
    world.remembered = CaBundle::default();
    let steps = world.run();
    assert_eq!(steps, [Step::MakeAuthority { cause: Cause::Absent, previous: old.bundle() }, Step::Show]);
    assert_eq!(world.leaf(), leaf, "the old serving certificate stays until webhooks trust the new authority");
    world.unchanged = Duration::from_secs(10);
    assert_eq!(world.step(), issues(Cause::Introduced));
    assert_eq!(world.decide().bundle, world.current().bundle().and(&old.bundle()));
    world.unchanged = Duration::from_secs(60);
    assert_eq!(world.run(), [Step::Trust { previous: CaBundle::default() }, Step::Show]);
}

#[test]
fn with_both_secrets_gone_the_old_authority_is_remembered() {
    let mut world = World::settled();
    let old = world.current();
    world.remembered = world.decide().bundle;
    (world.authority, world.serving) = (None, None);
    let made = Step::MakeAuthority { cause: Cause::Absent, previous: old.bundle() };
    assert_eq!(world.run(), [made, issues(Cause::Absent)]);
    assert!(world.decide().bundle.holds(&old.bundle()), "replicas show certificates of it");
}

#[test]
fn a_deleted_serving_certificate_is_made_again_at_once() {
    let mut world = World::settled();
    let authority = world.current();
    world.serving = None;
    assert_eq!(world.run(), [issues(Cause::Absent)]);
    assert_eq!(world.decide().bundle, authority.bundle());
}

#[test]
fn what_cannot_be_used_is_replaced_and_told() {
    let noise = k8s_openapi::ByteString(b"noise".to_vec());
    let mut world = World::settled();
    let old = world.current();
    world.authority.as_mut().expect("a Secret").insert("ca.key".to_owned(), noise.clone());
    assert_eq!(world.decide().problems, [Problem::Authority(AuthorityError::Key)]);
    let steps = world.run();
    assert_eq!(steps[0], Step::MakeAuthority { cause: Cause::Unusable, previous: old.bundle() });
    assert_eq!(world.decide().problems, []);

    let mut world = World::settled();
    world.serving.as_mut().expect("a Secret").insert("tls.crt".to_owned(), noise);
    assert!(matches!(world.decide().problems[..], [Problem::Serving(PairError::Certificate(_))]));
    assert_eq!(world.run(), [issues(Cause::Unusable)]);

    let mut world = World::settled();
    let other = World::settled().serving.expect("a Secret")["tls.key"].clone();
    world.serving.as_mut().expect("a Secret").insert("tls.key".to_owned(), other);
    assert_eq!(world.decide().problems, [Problem::Serving(PairError::OtherKey)]);
    assert_eq!(world.run(), [issues(Cause::Unusable)]);
}

#[test]
fn an_authority_replaced_by_hand_is_introduced_like_any_other() {
    let mut world = World::settled();
    let old = world.current();
    world.authority = World::settled().authority;
    assert_eq!(world.run(), [Step::Trust { previous: old.bundle() }, Step::Show]);
    world.unchanged = Duration::from_secs(10);
    assert_eq!(world.step(), issues(Cause::Introduced));
}

/// As a restore does, or a tool that keeps Secrets in git.
#[test]
fn the_old_authority_stays_trusted_when_both_secrets_are_replaced_until_pods_have_the_other_certificate() {
    let mut world = World::settled();
    let old = world.current().bundle();
    let other = World::settled();
    let new = other.current().bundle();
    (world.authority, world.serving) = (other.authority, other.serving);
    let both = new.clone().and(&old);
    assert_eq!(world.decide().bundle, both, "at no moment do webhooks trust only one of them");
    assert_eq!(world.run(), [Step::Show]);
    assert_eq!((world.decide().bundle, world.serving().shown()), (both.clone(), both));
    world.missing = rules().replica_pause;
    assert_eq!(world.run(), [Step::Show]);
    for _ in 0..3 {
        world.forward(days(1));
        assert_eq!((world.decide().bundle, world.run()), (new.clone(), vec![]), "that is the end of it");
    }
}

/// As Sealed Secrets and the External Secrets Operator do.
#[test]
fn a_tool_that_restores_both_secrets_after_each_write_ends_the_change_no_later() {
    let mut world = World::settled();
    let old = world.current().bundle();
    let other = World::settled();
    let new = other.current().bundle();
    let restore = |world: &mut World| {
        (world.authority, world.serving) = (other.authority.clone(), other.serving.clone());
    };
    restore(&mut world);
    for _ in 0..100 {
        assert!(world.decide().bundle.holds(&new.clone().and(&old)));
        // The Secret of the authority may be one that the controller must not write, and is not written.
        assert_eq!(world.step(), Step::Show);
        restore(&mut world);
    }
    world.missing = rules().replica_pause;
    let decision = world.decide();
    assert_eq!((decision.bundle, decision.step), (new, None));
}

#[test]
fn the_old_authority_stays_trusted_whatever_is_in_place_of_both_secrets() {
    for change in ["no serving certificate", "an expired one", "one of a third authority"] {
        let mut world = World::settled();
        let old = world.current().bundle();
        let other = World::settled();
        (world.authority, world.serving) = (other.authority.clone(), other.serving.clone());
        match change {
            "no serving certificate" => world.serving = None,
            "an expired one" => world.forward(days(31)),
            _ => world.serving = World::settled().serving,
        }
        while let Some(step) = world.decide().step {
            assert!(world.decide().bundle.holds(&old), "{change}: {step:?}");
            world.step();
        }
        for _ in 0..3 {
            assert!(world.decide().bundle.holds(&old), "{change}");
            world.unchanged = rules().bundle_pause;
            world.run();
        }
        world.missing = rules().replica_pause;
        world.run();
        world.unchanged = rules().replica_pause;
        world.run();
        assert_eq!(world.decide().bundle, other.current().bundle(), "{change}");
    }
}

#[test]
fn a_serving_certificate_that_nobody_trusts_is_replaced() {
    let mut world = World::settled();
    let strange = World::settled();
    let pair = strange.serving().pair.expect("a Secret").expect("a pair");
    world.serving = Some(StoredServing::data(&pair, &world.current().bundle()));
    world.remembered = CaBundle::default();
    assert_eq!(world.run(), [issues(Cause::Untrusted)]);
}

#[test]
fn a_service_of_another_name_gets_a_certificate_of_its_own() {
    let mut world = World::settled();
    let others = Rules { names: vec!["other.gate.svc".to_owned()], ..rules() };
    let pair = world.current().issue(&others, world.now).expect("a certificate");
    world.serving = Some(StoredServing::data(&pair, &world.current().bundle()));
    assert_eq!(world.run(), [issues(Cause::OtherNames)]);
}

#[test]
fn a_clock_that_goes_back_a_little_renews_nothing() {
    let mut world = World::settled();
    world.now = now().checked_sub(SignedDuration::from_mins(59)).expect("a time");
    let decision = world.decide();
    assert_eq!((decision.step, decision.problems), (None, vec![]));
    assert_eq!(decision.bundle, world.current().bundle());
}

#[test]
fn a_certificate_that_one_api_server_made_with_a_clock_ahead_is_replaced() {
    let mut world = World::settled();
    world.forward(days(5));
    world.serving = None;
    assert_eq!(world.run(), [issues(Cause::Absent)]);
    let (fast, from) = (world.now, world.leaf().not_before);
    world.now = now();
    assert_eq!(world.decide().problems, [Problem::NotYetValid { which: Which::Serving, from }]);
    assert_eq!(world.run(), [issues(Cause::NotYetValid)]);
    assert!(world.leaf().is_valid(world.now) && world.decide().problems.is_empty());
    world.now = fast;
    assert_eq!(world.run(), [], "it is valid for that API server, too");
}

#[test]
fn an_authority_that_is_not_valid_yet_is_replaced_and_trusted_meanwhile() {
    let mut world = World::empty();
    world.forward(days(300));
    world.run();
    let old = world.current();
    world.now = now();
    let problem = |which, from| Problem::NotYetValid { which, from };
    let told = [problem(Which::Ca, old.certificate.not_before), problem(Which::Serving, world.leaf().not_before)];
    assert_eq!(world.decide().problems, told);
    let made = Step::MakeAuthority { cause: Cause::NotYetValid, previous: old.bundle() };
    assert_eq!(world.run(), [made, issues(Cause::NotYetValid)]);
    let new = world.current();
    assert!(new.certificate.is_valid(world.now) && new.certificate.vouches_for(&world.leaf(), &[]));
    let both = new.bundle().and(&old.bundle());
    assert_eq!((world.decide().bundle, world.serving().shown()), (both.clone(), both));
    world.unchanged = rules().replica_pause;
    assert_eq!(world.run(), [Step::Trust { previous: CaBundle::default() }, Step::Show]);
}

#[test]
fn clocks_that_stay_far_apart_do_not_pile_up_authorities() {
    let mut world = World::settled();
    let ahead = now().checked_add(days(400)).expect("a time");
    for _ in 0..20 {
        for clock in [ahead, now()] {
            world.now = clock;
            world.run();
            assert!(world.leaf().is_valid(clock), "it is served to those with this clock");
            assert!(world.decide().bundle.certificates().len() <= 4, "{:?}", world.decide().bundle);
        }
    }
}

#[test]
fn fault_h14_what_should_have_been_renewed_is_told() {
    let mut world = World::settled();
    assert_eq!(world.decide().expiring, []);
    world.forward(days(21));
    assert_eq!(world.decide().expiring, [Which::Serving], "nobody could write the Secret");
    world.forward(days(41));
    assert_eq!(world.decide().expiring, [Which::Ca, Which::Serving]);
    // An authority that lives for a year is not yet near its end when it is replaced.
    let authority = Authority::make(&Rules { ca_lifetime: rules().ca_lifetime * 4, ..rules() }, now());
    let authority = authority.expect("an authority");
    let mut decision = Decision::new(authority.bundle());
    decision.judge(now().checked_add(days(250)).expect("a time"), &rules(), Which::Ca, &authority.certificate);
    assert_eq!(decision.expiring, []);
}

#[test]
fn a_decision_is_the_same_whoever_asks_again() {
    let world = World::settled();
    assert_eq!(world.decide(), world.decide());
    let mut rotating = World::settled();
    rotating.forward(days(61));
    rotating.run();
    assert_eq!(rotating.decide(), rotating.decide());
}

/// It is not checked whether loaders trust the authority: they have what the Secret shows, once it has had time to reach them.
#[test]
fn w12_the_authority_of_loaders_is_replaced_with_overlap_by_the_secret_alone() {
    let mut world = World::settled();
    let (old, leaf) = (world.current(), world.leaf());
    world.authority = None;
    world.remembered = CaBundle::default();
    world.run();
    let both = world.current().bundle().and(&old.bundle());
    assert_eq!(
        (world.serving().shown(), world.leaf()),
        (both, leaf),
        "all trust both before anybody shows the new one"
    );
}

#[test]
fn fault_h16_a_serving_certificate_lost_in_a_rotation_comes_again_when_webhooks_trust_its_authority() {
    let mut world = World::settled();
    world.forward(days(61));
    world.run();
    world.authority = None;
    assert!(matches!(world.step(), Step::MakeAuthority { cause: Cause::Absent, .. }));
    for lost in [None, Some(super::super::stored::Data::new())] {
        world.serving = lost;
        world.is_spread = false;
        assert_eq!((world.decide().step, world.decide().wait), (None, Some(SPREADING)));
        world.is_spread = true;
        assert!(matches!(world.decide().step, Some(Step::IssueServing { .. })));
    }
}

#[test]
fn fault_h16_a_certificate_of_somebody_else_is_trusted_until_one_of_the_controllers_own_takes_its_place() {
    let mut world = World::settled();
    let (own, other) = (world.current().bundle(), Authority::make(&rules(), now()).expect("an authority"));
    let fewer = Rules { names: rules().names[..1].to_vec(), ..rules() };
    let pair = other.issue(&fewer, now()).expect("a certificate");
    world.serving = Some(StoredServing::data(&pair, &other.bundle()));
    world.remembered = other.bundle();
    let both = own.clone().and(&other.bundle());
    // At no moment do webhooks trust only one of them.
    assert_eq!(world.decide().bundle, both);
    assert_eq!(world.run(), [Step::Trust { previous: other.bundle() }, Step::Show]);
    assert_eq!((world.decide().bundle, world.decide().wait), (both.clone(), Some(rules().bundle_pause)));
    world.unchanged = rules().bundle_pause;
    assert_eq!(world.step(), issues(Cause::Introduced));
    assert_eq!((world.decide().bundle, world.decide().wait), (both, Some(rules().replica_pause)));
    world.unchanged = rules().replica_pause;
    world.run();
    assert_eq!(world.decide().bundle, own);
}
