//! Runs two queue pairs over any link and compares them with the naive model, or sends one of them any
//! packets.
#![no_main]

use invar_simulator::model::roce::{Choices, Script, abuse, run};
use libfuzzer_sys::fuzz_target;

/// The most faults of the link. So few cannot make an end give up, whichever packets they hit.
const FAULTS_MAX: u32 = 24;

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::Bytes(data);
    if choices.percent(50) {
        abuse(200, &mut choices);
    } else {
        let mut script = Script::new(&mut choices);
        script.faults.left = FAULTS_MAX;
        run(&script, &mut choices);
    }
});
