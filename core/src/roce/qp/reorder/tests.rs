use super::*;

extern crate std;

const AGE: u64 = 100;
const START: Psn = Psn::new(0xff_fff0);

fn reorder() -> Reorder {
    let mut reorder = Reorder::default();
    reorder.set_hole_age(AGE);
    reorder
}

fn asks(reorder: &mut Reorder, expected: Psn) -> std::vec::Vec<i32> {
    let asks = core::iter::from_fn(|| reorder.next_ask(expected));
    asks.map(|psn| psn.since(START)).collect()
}

#[test]
fn holes_are_asked_for_once_when_they_have_aged() {
    let mut reorder = reorder();
    for (now, ahead) in [(0, 3), (10, 1), (20, 6), (110, 20)] {
        reorder.note(now, START, START.add(ahead), None);
    }
    assert_eq!(reorder.deadline_ns(), Some(AGE));
    reorder.handle_timeout(AGE - 1, START);
    assert!(asks(&mut reorder, START).is_empty());
    // The first packet that arrived shows the holes before it.
    reorder.handle_timeout(AGE, START);
    assert_eq!(asks(&mut reorder, START), [0, 2]);
    // The later packets show more holes, one hole age after the first look.
    assert_eq!(reorder.deadline_ns(), Some(2 * AGE));
    reorder.handle_timeout(2 * AGE, START);
    let rest: std::vec::Vec<_> = [4, 5].into_iter().chain(7..20).collect();
    assert_eq!(asks(&mut reorder, START), rest);
    assert_eq!(reorder.deadline_ns(), Some(AGE + ASK_AGAIN_AGES * AGE));
}

#[test]
fn a_hole_that_stays_is_asked_for_again() {
    let mut reorder = reorder();
    reorder.note(0, START, START.add(2), None);
    reorder.handle_timeout(AGE, START);
    assert_eq!(asks(&mut reorder, START), [0, 1]);
    reorder.note(150, START, START.add(1), None);
    let again = AGE + ASK_AGAIN_AGES * AGE;
    assert_eq!(reorder.deadline_ns(), Some(again));
    reorder.handle_timeout(again, START);
    assert_eq!(asks(&mut reorder, START), [0]);
}

#[test]
fn a_peer_that_leaves_holes_is_asked_for_few_of_them_and_less_and_less_often() {
    let mut reorder = reorder();
    reorder.note(0, START, START.add(LEN - 1), None);
    reorder.handle_timeout(AGE, START);
    assert_eq!(asks(&mut reorder, START).len(), LEN as usize - 1);
    let mut last = AGE;
    for doublings in 0..DOUBLINGS_MAX + 3 {
        let again = reorder.deadline_ns().unwrap();
        assert_eq!(again - last, AGE * (ASK_AGAIN_AGES << doublings.min(DOUBLINGS_MAX)));
        reorder.handle_timeout(again, START);
        let near: std::vec::Vec<_> = (0..ASK_AGAIN_PACKETS as i32).collect();
        assert_eq!(asks(&mut reorder, START), near);
        last = again;
    }
    // A packet then arrives in order.
    let expected = START.add(1);
    let again = reorder.deadline_ns().unwrap();
    reorder.handle_timeout(again, expected);
    assert_eq!(asks(&mut reorder, expected).first(), Some(&1));
    assert_eq!(reorder.deadline_ns(), Some(again + AGE * ASK_AGAIN_AGES));
}

#[test]
fn a_new_hole_does_not_wait_for_an_old_one() {
    let mut reorder = reorder();
    reorder.note(0, START, START.add(1), None);
    reorder.handle_timeout(AGE, START);
    assert_eq!(asks(&mut reorder, START), [0]);
    reorder.note(200, START, START.add(3), None);
    assert_eq!(reorder.deadline_ns(), Some(200 + AGE));
    reorder.handle_timeout(200 + AGE, START);
    assert_eq!(asks(&mut reorder, START), [2]);
}

#[test]
fn holes_that_close_are_not_asked_for() {
    let mut reorder = reorder();
    reorder.note(0, START, START.add(1), None);
    reorder.note(0, START, START.add(2), None);
    // Packet 0 came, so packets 1 and 2 are done too.
    reorder.release(START.add(1));
    reorder.release(START.add(2));
    assert_eq!(reorder.deadline_ns(), None);
    reorder.note(500, START.add(3), START.add(4), None);
    assert_eq!(reorder.deadline_ns(), Some(500 + AGE));
    reorder.note(510, START.add(3), START.add(3), None);
    reorder.handle_timeout(600, START.add(3));
    assert!(asks(&mut reorder, START.add(3)).is_empty());
    assert_eq!(reorder.deadline_ns(), None);
}

#[test]
fn immediates_come_out_in_order_and_their_number_is_bounded() {
    let mut reorder = reorder();
    for ahead in (1..=IMMEDIATES_MAX as u32).rev() {
        assert!(reorder.has_room(ahead, true));
        let psn = START.add(ahead);
        let immediate = Immediate { psn, imm: ImmDt::default(), byte_len: ahead, solicited: false };
        reorder.note(0, START, psn, Some(immediate));
    }
    assert!(!reorder.has_room(40, true));
    assert!(reorder.has_room(40, false));
    assert!(reorder.has_room(LEN - 1, false));
    assert!(!reorder.has_room(LEN, false));
    for ahead in 1..=IMMEDIATES_MAX as u32 {
        let psn = START.add(ahead);
        assert_eq!(reorder.immediate(psn).map(|immediate| immediate.byte_len), Some(ahead));
        reorder.release(psn);
        assert!(reorder.immediate(psn).is_none());
    }
}
