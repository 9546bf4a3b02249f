//! Distributes directories to threads, such that a thread gets a directory with everything below it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::error::{Error, Result};
use crate::tree::Dir;

/// Smallest number of directories per thread.
const LEAST: usize = 256;
/// Number of portions per thread, because some portions take longer than others.
const PORTIONS: usize = 16;

/// The directories of a tree, without the root.
#[derive(Debug)]
pub(crate) struct Subtrees {
    /// Directories whose descendants are in several portions, parents first.
    upper: Vec<usize>,
    /// Ranges of directories whose parents are among them or above.
    portions: Vec<Range<usize>>,
    threads: usize,
}

impl Subtrees {
    /// `dirs` are depth-first, parents before children.
    pub(crate) fn new(dirs: &[Dir], threads: usize) -> Self {
        let threads = threads.min(dirs.len() / LEAST).max(1);
        if threads == 1 {
            return Self {
                upper: Vec::new(),
                portions: std::iter::once(1..dirs.len()).collect(),
                threads,
            };
        }
        let mut sizes = vec![1_u32; dirs.len()];
        for (number, dir) in dirs.iter().enumerate().skip(1).rev() {
            let own = sizes.get(number).copied().unwrap_or(1);
            if let Some(size) = sizes.get_mut(dir.parent as usize) {
                *size += own;
            }
        }
        let share = (dirs.len() / (threads * PORTIONS)).max(1);
        let (mut upper, mut portions) = (Vec::new(), Vec::new());
        let mut open = 1..1;
        while let Some(&size) = sizes.get(open.end) {
            let size = size as usize;
            if size <= share {
                open.end += size;
            } else {
                upper.push(open.end);
            }
            if size > share || open.len() >= share {
                // An upper directory is in no portion.
                let next = open.end + usize::from(size > share);
                portions.push(open);
                open = next..next;
            }
        }
        portions.push(open);
        portions.retain(|portion| !portion.is_empty());
        Self {
            upper,
            portions,
            threads,
        }
    }

    /// Directories to process before all portions, or in reverse order after them.
    pub(crate) fn upper(&self) -> &[usize] {
        &self.upper
    }

    /// Calls `run` for all portions in several threads, each with its own state, and returns the
    /// states. The first error ends the work.
    pub(crate) fn each<S: Default + Send>(
        &self,
        run: impl Fn(&mut S, Range<usize>) -> Result<()> + Sync,
    ) -> Result<Vec<S>> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::default();
        let work = || {
            let mut state = S::default();
            while !stop.load(Ordering::Relaxed)
                && let Some(portion) = self.portions.get(next.fetch_add(1, Ordering::Relaxed))
            {
                if let Err(e) = run(&mut state, portion.clone()) {
                    stop.store(true, Ordering::Relaxed);
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(e);
                }
            }
            state
        };
        let mut states = Vec::new();
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads)
                // Without a further thread, this thread does all the work.
                .map_while(|_| {
                    let named = thread::Builder::new().name("directories".to_owned());
                    named.spawn_scoped(scope, work).ok()
                })
                .collect();
            states.push(work());
            for other in others {
                match other.join() {
                    Ok(state) => states.push(state),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(states),
        }
    }
}

#[cfg(test)]
mod tests {
    use redwarfs_format::{EntryIndex, InodeNo};

    use super::*;

    fn tree(parents: impl IntoIterator<Item = u32>) -> Vec<Dir> {
        let dir = |parent| Dir {
            parent,
            entry: EntryIndex(0),
            ino: InodeNo(0),
        };
        parents.into_iter().map(dir).collect()
    }

    /// Every directory is dealt with once, after its parent, whoever has the other portions.
    fn check(dirs: &[Dir], threads: usize) -> Subtrees {
        let all = Subtrees::new(dirs, threads);
        let mut done = vec![false; dirs.len()];
        done[0] = true;
        for &number in all.upper() {
            assert!(done[dirs[number].parent as usize] && !done[number]);
            done[number] = true;
        }
        let above = done.clone();
        for portion in &all.portions {
            let first = portion.start;
            for number in portion.clone() {
                let parent = dirs[number].parent as usize;
                assert!(above[parent] || parent >= first, "{number} in {portion:?}");
                assert!(!done[number]);
                done[number] = true;
            }
        }
        assert!(done.iter().all(|&done| done));
        all
    }

    #[test]
    fn portions_hold_whole_subtrees() {
        let few = check(&tree((0..10).map(|n: u32| n.saturating_sub(1))), 4);
        assert_eq!((few.threads, few.portions.len()), (1, 1));
        // All in the root; a chain; a hundred with eleven each; a long chain and then a wide directory.
        let wide = check(&tree((0..5000).map(|_| 0)), 4);
        assert!(wide.upper.is_empty() && wide.portions.len() >= 32);
        check(&tree((0..5000).map(|n: u32| n.saturating_sub(1))), 4);
        let groups = tree((0..1200).map(|n: u32| if n % 12 < 2 { 0 } else { n - n % 12 + 1 }));
        assert!(check(&groups, 2).portions.len() > 10);
        check(
            &tree((0..3000).map(|n: u32| n.saturating_sub(1).min(1500))),
            2,
        );
        check(&tree([0]), 2);
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let all = Subtrees::new(&tree((0..5000).map(|_| 0)), 3);
        let states = all.each(|sum: &mut usize, portion| {
            *sum += portion.len();
            Ok(())
        });
        assert_eq!(states.unwrap().iter().sum::<usize>(), 4999);
        let failed = all.each(|_: &mut (), portion| {
            if portion.contains(&2500) {
                return Err(redwarfs_format::Error::corrupt("expected").into());
            }
            Ok(())
        });
        assert!(failed.unwrap_err().to_string().contains("expected"));
    }
}
