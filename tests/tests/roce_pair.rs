//! Two queue pairs run over a link that loses, doubles and delays packets. Every message arrives once,
//! in order, whole, and within bounded time.

use invar_testkit::model::roce::{Choices, Script, abuse, run};
use invar_testkit::random::Random;

#[test]
fn all_operations_arrive_over_any_link() {
    for seed in 0..2000 {
        let mut choices = Choices::Random(Random::new(seed));
        let script = Script::new(&mut choices);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&script, &mut choices);
        }));
        assert!(outcome.is_ok(), "seed {seed}: {script:#?}");
    }
}

#[test]
fn no_call_and_no_packet_does_harm() {
    for seed in 0..1000 {
        let outcome =
            std::panic::catch_unwind(|| abuse(200, &mut Choices::Random(Random::new(seed))));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
