//! Authorities that end soon, or have ended.

use super::*;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// Checks that an authority which was just made beside this one takes its place.
fn takes_its_place(world: &mut World, old: &Authority) {
    let new = world.current();
    assert!(old.certificate.vouches_for(&world.leaf(), &[]), "the old serving certificate stays in use");
    assert_eq!(world.decide().bundle, new.bundle().and(&old.bundle()));
    world.forward(MINUTE);
    assert_eq!(world.run(), [issues(Cause::Introduced)]);
    assert!(new.certificate.vouches_for(&world.leaf(), &[]) && world.leaf().not_after > old.certificate.not_after);
    world.forward(MINUTE);
    assert_eq!(world.run(), [Step::Trust { previous: CaBundle::default() }, Step::Show]);
}

#[test]
fn after_a_long_sleep_everything_is_new_at_once() {
    let mut world = World::settled();
    world.forward(days(400));
    let decision = world.decide();
    assert!(decision.bundle.is_empty(), "nobody takes an authority that has ended");
    assert!(matches!(world.step(), Step::MakeAuthority { cause: Cause::Ended, .. }));
    assert_eq!(world.step(), issues(Cause::Ended));
    assert_eq!(world.run(), []);
}

#[test]
fn an_authority_that_ends_with_its_certificate_is_replaced_before() {
    let mut world = World::empty();
    world.rules.ca_lifetime = Duration::from_secs(3600);
    world.rules.serving_lifetime = Duration::from_secs(90 * 24 * 3600);
    world.run();
    for _ in 0..10 {
        let old = world.current();
        assert_eq!(world.leaf().not_after, old.certificate.not_after);
        let steps = loop {
            let wait = world.decide().wait.expect("a time");
            world.forward(MINUTE);
            assert!(!old.certificate.is_over(world.now), "it ends with its certificate");
            let steps = world.run();
            if !steps.is_empty() {
                assert!(wait <= Duration::from_secs(60), "it looks again in time");
                break steps;
            }
        };
        let made = Step::MakeAuthority { cause: Cause::Due, previous: old.bundle() };
        assert_eq!(steps, [made, Step::Show], "a new certificate would end no later");
        takes_its_place(&mut world, &old);
    }
}

#[test]
fn a_controller_that_returns_shortly_before_the_end_of_the_authority_replaces_it_after_one_certificate() {
    let mut world = World::settled();
    let old = world.current();
    world.forward(days(90) - SignedDuration::from_mins(20));
    let made = Step::MakeAuthority { cause: Cause::Due, previous: old.bundle() };
    assert_eq!(world.run(), [issues(Cause::Ended), made, Step::Show]);
    takes_its_place(&mut world, &old);
}
