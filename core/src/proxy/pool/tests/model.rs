extern crate std;

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Memory, op};
use crate::proxy::link::OpLink;
use crate::proxy::{Appended, OpPool, PostError, Poster, TakeError, Taker};

/// The next action of a rank or the proxy.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A rank appends an operation; `true` begins a new operation count.
    Append(usize, bool),
    Post(usize),
    Take(u32),
}

fn acts(nranks: usize) -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0..nranks, any::<bool>()).prop_map(|(rank, new)| Act::Append(rank, new)),
        2 => (0..nranks).prop_map(Act::Post),
        1 => (1u32..5).prop_map(Act::Take),
    ];
    proptest::collection::vec(act, 0..200)
}

/// The operations that the proxy would have if the pool were a queue for each rank.
#[derive(Default)]
struct Rank {
    op_count: u64,
    /// Operation count and number: `kept` are appended and not posted, `posted` are posted and not
    /// taken.
    kept: VecDeque<(u64, u32)>,
    posted: VecDeque<(u64, u32)>,
}

proptest! {
    #[test]
    fn what_ranks_post_is_taken_in_order_and_whole_runs_at_a_time(
        per_rank in 1usize..9,
        acts in acts(3),
    ) {
        let memory = Memory::new(3, per_rank);
        let pool = memory.pool();
        let mut posters: Vec<Poster> = (0..3).map(Poster::new).collect();
        let mut ranks: Vec<Rank> = Vec::new();
        ranks.resize_with(3, Rank::default);
        let mut taker = Taker::default();
        for (number, act) in (0..).zip(acts) {
            match act {
                Act::Append(r, new) => {
                    let rank = &mut ranks[r];
                    rank.op_count += u64::from(new);
                    let cells = rank.kept.len() + rank.posted.len();
                    match posters[r].append(pool, &op(rank.op_count, number)) {
                        Ok(Appended::NoRoom) => prop_assert_eq!(cells, per_rank),
                        Ok(Appended::Queued) => {
                            rank.kept.push_back((rank.op_count, number));
                            prop_assert!(rank.kept.len() < per_rank);
                        }
                        Ok(Appended::Posted { .. }) => {
                            rank.kept.push_back((rank.op_count, number));
                            prop_assert_eq!(rank.kept.len(), per_rank);
                            while rank.kept[0].0 != rank.op_count {
                                rank.posted.extend(rank.kept.pop_front());
                            }
                        }
                        Err(PostError::TooMany { len, op_count, .. }) => {
                            rank.kept.push_back((rank.op_count, number));
                            prop_assert_eq!((len as usize, op_count), (per_rank, rank.op_count));
                            prop_assert!(rank.kept.iter().all(|(count, _)| *count == op_count));
                        }
                        Err(error) => return Err(TestCaseError::fail(std::format!("{error}"))),
                    }
                    prop_assert_eq!(posters[r].len() as usize, rank.kept.len());
                }
                Act::Post(r) => {
                    let nothing = ranks.iter().all(|rank| rank.posted.is_empty());
                    let wake = posters[r].post(pool).unwrap();
                    // Operations that the taker already holds are no longer in the list.
                    let some = !ranks[r].kept.is_empty();
                    prop_assert!(!(nothing && some) || wake, "nobody would wake the taker");
                    let rank = &mut ranks[r];
                    rank.posted.extend(rank.kept.drain(..));
                    prop_assert!(posters[r].is_empty());
                }
                Act::Take(batch) => {
                    let full: Vec<bool> = ranks
                        .iter()
                        .map(|rank| rank.kept.len() + rank.posted.len() == per_rank)
                        .collect();
                    let mut runs = Vec::new();
                    let taken = taker.take(pool, batch, |r, op| {
                        let front = ranks[r as usize].posted.pop_front();
                        assert_eq!(front, Some((op.op_count, op.peer)));
                        runs.push((r, op.op_count));
                        Ok::<_, ()>(())
                    });
                    let taken = taken.unwrap();
                    prop_assert_eq!(taken.ops as usize, runs.len());
                    for r in 0..3 {
                        let freed = runs.iter().any(|(rank, _)| *rank == r);
                        let wake = taken.wake_ranks & 1 << r != 0;
                        prop_assert!(!(full[r as usize] && freed) || wake, "rank {} sleeps", r);
                    }
                    runs.dedup();
                    prop_assert!(runs.len() <= batch as usize);
                }
            }
        }
    }
}

#[test]
fn a_rank_may_wait_for_a_cell_only_until_one_is_given_back() {
    let memory = Memory::new(1, 2);
    let pool = memory.pool();
    let (mut poster, mut taker) = (Poster::new(0), Taker::default());
    assert_eq!(poster.append(pool, &op(1, 0)), Ok(Appended::Queued));
    assert_eq!(poster.append(pool, &op(2, 1)), Ok(Appended::Posted { wake: true }));
    assert_eq!(poster.append(pool, &op(3, 2)), Ok(Appended::NoRoom));
    assert!(pool.free(0).unwrap().is_empty());
    let taken = taker.take(pool, 16, |_, _| Ok::<_, ()>(())).unwrap();
    assert_eq!((taken.ops, taken.wake_ranks), (1, 1));
    assert_eq!(poster.append(pool, &op(3, 2)), Ok(Appended::Posted { wake: true }));
}

#[test]
fn a_closed_pool_gives_out_what_it_has_and_takes_nothing_in() {
    let memory = Memory::new(1, 4);
    let pool = memory.pool();
    let (mut poster, mut taker) = (Poster::new(0), Taker::default());
    assert_eq!(poster.append(pool, &op(1, 0)), Ok(Appended::Queued));
    assert_eq!(poster.post(pool), Ok(true));
    assert_eq!(poster.append(pool, &op(1, 1)), Ok(Appended::Queued));
    pool.posted().close();
    assert_eq!(poster.post(pool), Err(PostError::Closed { rank: 0 }));
    assert!(pool.posted().is_closed() && !pool.posted().is_empty());
    let taken = taker.take(pool, 16, |_, _| Ok::<_, ()>(())).unwrap();
    assert_eq!(taken.ops, 1);
    assert!(pool.posted().is_closed() && pool.posted().is_empty());
}

#[test]
fn memory_that_somebody_else_wrote_gives_an_error() {
    let take = |pool: OpPool<'_>| Taker::default().take(pool, 16, |_, _| Ok::<_, ()>(()));
    let posted = |memory: &Memory| {
        let mut poster = Poster::new(1);
        assert_eq!(poster.append(memory.pool(), &op(1, 0)), Ok(Appended::Queued));
        assert_eq!(poster.append(memory.pool(), &op(1, 0)), Ok(Appended::Queued));
        poster.post(memory.pool()).unwrap();
    };
    // Rank 1 has cells 4 to 7, and posts cells 4 and 5.
    let memory = Memory::new(2, 4);
    posted(&memory);
    memory.cells[4].set_next(OpLink::to(5));
    assert!(matches!(take(memory.pool()), Err(TakeError::Corrupt(4 | 5))));

    let memory = Memory::new(2, 4);
    posted(&memory);
    memory.cells[4].set_next(OpLink::to(8));
    assert_eq!(take(memory.pool()), Err(TakeError::Corrupt(8)));

    let memory = Memory::new(2, 4);
    posted(&memory);
    let mut bad = op(1, 0);
    bad.slice_steps = 0;
    memory.cells[4].write(&bad);
    assert!(matches!(take(memory.pool()), Err(TakeError::Op { rank: 1, index: 4, .. })));

    let memory = Memory::new(2, 4);
    memory.cells[0].set_next(OpLink::to(6));
    let mut poster = Poster::new(0);
    assert_eq!(poster.append(memory.pool(), &op(1, 0)), Ok(Appended::Queued));
    let error = poster.append(memory.pool(), &op(1, 0)).unwrap_err();
    assert_eq!(error, PostError::Corrupt { rank: 0, index: 6 });
    let mut stranger = Poster::new(2);
    let error = stranger.append(memory.pool(), &op(1, 0)).unwrap_err();
    assert_eq!(error, PostError::NoSuchRank { rank: 2, nranks: 2 });
}

#[test]
fn a_pool_has_as_many_cells_for_each_rank() {
    let memory = Memory::new(2, 4);
    let new = |free: usize, cells: usize| {
        OpPool::new(&memory.posted, &memory.free[..free], &memory.cells[..cells])
    };
    for (free, cells) in [(0, 4), (2, 0), (2, 3)] {
        assert!(new(free, cells).is_none(), "{free} {cells}");
    }
    assert_eq!(new(2, 8).map(|pool| (pool.nranks(), pool.per_rank())), Some((2, 4)));
}
