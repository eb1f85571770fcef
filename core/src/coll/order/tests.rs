extern crate std;
use std::collections::BTreeSet;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn nodes(nnodes: u32) -> Vec<Node> {
    (0..nnodes).map(|node| Node::of(node, nnodes)).collect()
}

#[test]
fn the_tree_of_fourteen_is_the_one_of_the_picture_in_trees_cc() {
    // Parent and children of each node, read off NCCL's picture.
    let picture = [
        (None, [Some(8), None]),
        (Some(2), [None, None]),
        (Some(4), [Some(1), Some(3)]),
        (Some(2), [None, None]),
        (Some(8), [Some(2), Some(6)]),
        (Some(6), [None, None]),
        (Some(4), [Some(5), Some(7)]),
        (Some(6), [None, None]),
        (Some(0), [Some(4), Some(12)]),
        (Some(10), [None, None]),
        (Some(12), [Some(9), Some(11)]),
        (Some(10), [None, None]),
        (Some(8), [Some(10), Some(13)]),
        (Some(12), [None, None]),
    ];
    assert_eq!(nodes(14), picture.map(|(up, down)| Node { up, down }));
}

#[test]
fn the_second_tree_is_the_first_mirrored_or_moved_on() {
    let even: Vec<u32> = (0..12).collect();
    let order = Order::new(&even).unwrap();
    let tree = |up, down: [u32; 2]| Tree { up, down: [Some(down[0]), Some(down[1]), None] };
    assert_eq!(order.double_tree(3, true), tree(Some(11), [7, 1]));
    assert_eq!(order.double_tree(11, true), Tree { up: None, down: [Some(3), None, None] });
    let odd: Vec<u32> = (0..13).collect();
    let order = Order::new(&odd).unwrap();
    assert_eq!(order.double_tree(9, true), tree(Some(1), [5, 0]));
    assert_eq!(order.double_tree(1, true), Tree { up: None, down: [Some(9), None, None] });
}

#[test]
fn a_row_that_is_no_permutation_is_refused_with_the_rank() {
    let error = |ranks: &[u32]| Order::new(ranks).map(|order| order.nranks());
    assert_eq!(error(&[]), Err(OrderError::Empty));
    let not_once = |rank, times| Err(OrderError::NotOnce { rank, times, nranks: 3 });
    assert_eq!(error(&[0, 2, 2]), not_once(1, 0));
    assert_eq!(error(&[1, 0, 1]), not_once(1, 2));
    assert_eq!(error(&[2, 0, 1]), Ok(3));
    assert_eq!(Order::new(&[2, 0, 1]).unwrap().ring(0), Ring { prev: 1, next: 0 });
    assert_eq!(Order::new(&[0]).unwrap().ring(0), Ring { prev: 0, next: 0 });
}

/// Walks the tree by each rank's children. Every rank must be reached from `root`, and each by its
/// parent.
fn check_tree<R: AsRef<[u32]>>(order: &Order<R>, root: u32, tree: impl Fn(u32) -> Tree) {
    let of = |rank| tree(order.place(rank).unwrap());
    let (mut reached, mut edge) = (BTreeSet::from([root]), Vec::from([root]));
    assert_eq!(of(root).up, None);
    while let Some(rank) = edge.pop() {
        for child in of(rank).down.into_iter().flatten() {
            assert_eq!(of(child).up, Some(rank));
            assert!(reached.insert(child), "rank {child} is the child of two");
            edge.push(child);
        }
    }
    assert_eq!(reached.len(), order.nranks() as usize);
}

proptest! {
    #[test]
    fn every_tree_reaches_each_rank_once_from_its_root(
        ranks in (1u32..70).prop_flat_map(|n| Just((0..n).collect::<Vec<u32>>()).prop_shuffle()),
        root: prop::sample::Index,
    ) {
        let order = Order::new(&ranks).unwrap();
        let nranks = order.nranks();
        let last = order.rank(if nranks % 2 == 1 && nranks > 1 { 1 } else { nranks - 1 });
        check_tree(&order, order.rank(0), |place| order.double_tree(place, false));
        check_tree(&order, last, |place| order.double_tree(place, true));
        let root = root.index(ranks.len()) as u32;
        check_tree(&order, order.rank(root), |place| order.tree(place, root));
    }

    #[test]
    fn no_rank_has_children_in_both_trees_but_one(nranks in 1u32..200) {
        let ranks: Vec<u32> = (0..nranks).collect();
        let order = Order::new(&ranks).unwrap();
        let inner = |place, second| order.double_tree(place, second).down[0].is_some();
        let both = (0..nranks).filter(|place| inner(*place, false) && inner(*place, true)).count();
        prop_assert!(both <= 1, "{} ranks", both);
    }
}
