use super::*;

/// `main` calls `send` twice and `poll` once. `send` and `poll` call the device, and the device calls
/// libc.
const SAMPLE: &str = "\
# callgrind format
version: 1
creator: by hand
cmd: ./bench msg=8
positions: line
events: Ir

ob=(1) /tmp/bench
fl=(1) /tmp/main.rs
fn=(1) bench::main
10 5
+2 7
fi=(2) /tmp/inlined.rs
3 4
fe=(1)
cfi=(3) /tmp/send.rs
cfn=(2) core::send
calls=2 20
* 130
cfn=(3) core::poll
calls=1 40
-1 60

fl=(3)
fn=(2)
20 30
cob=(2) /lib/libc.so
cfn=(4) <null::Nic as core::Nic>::post_send
calls=2 1
21 100

fn=(3)
40 20
cfn=(5) null::poll
calls=1 1
41 40

fn=(4)
1 80
cfn=(6) memcpy
calls=2 1
2 20

fn=(5)
1 40
2

ob=(2)
fn=(6)
1 20
totals: 206
";

fn own(profile: &Profile, function: &str) -> Option<u64> {
    profile.own.get(function).copied()
}

#[test]
fn own_cost_leaves_out_calls_and_takes_in_what_was_inlined() {
    let profile = Profile::parse(SAMPLE).unwrap();
    assert_eq!(own(&profile, "bench::main"), Some(16));
    assert_eq!(own(&profile, "core::send"), Some(30));
    assert_eq!(own(&profile, "null::poll"), Some(40));
    assert_eq!(profile.total(), 206);
}

#[test]
fn calls_carry_the_cost_below_them() {
    let profile = Profile::parse(SAMPLE).unwrap();
    let call = ("bench::main".to_owned(), "core::send".to_owned());
    assert_eq!(profile.calls[&call], 130);
    assert_eq!(profile.below(|name| name.contains("null::")), 140);
    assert_eq!(profile.below(|name| name == "bench::main"), 0);
    // A call within the set is already part of the call that enters the set.
    assert_eq!(profile.below(|name| name.contains("null::") || name == "memcpy"), 140);
}

#[test]
fn instruction_addresses_may_stand_before_the_line() {
    let text = "positions: instr line\nevents: Ir\nfn=(1) f\n0x401000 10 3\n+4 * 2\n";
    assert_eq!(own(&Profile::parse(text).unwrap(), "f"), Some(5));
}

#[test]
fn what_is_no_profile_is_an_error_that_names_the_line() {
    for text in ["fn=(1) f\n12 many\n", "fn=(9)\n", "garbage\n"] {
        let error = format!("{:#}", Profile::parse(text).unwrap_err());
        assert!(error.contains("line "), "{error}");
    }
}
