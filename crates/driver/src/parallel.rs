//! Independent work on several threads.

use std::sync::Mutex;

use memplan_ir::Module;

/// Instructions and operands of all programs being worked on: each thread takes a kilobyte for one of them.
const MOST_AT_A_TIME: usize = 1 << 20;

/// The number of threads that can each have a copy of a program, at least one. Linear in the module.
pub(crate) fn affordable(threads: usize, module: &Module) -> usize {
    let size: usize = module.instructions.values().map(|instruction| 1 + instruction.operands.len()).sum();
    threads.min(MOST_AT_A_TIME / size.max(1)).max(1)
}

/// Applies a function to every item, on up to `threads` threads; results are in the order of the items.
pub fn map<T: Send, R: Send>(threads: usize, items: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    if threads <= 1 || items.len() <= 1 {
        return items.into_iter().map(f).collect();
    }
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let workers = threads.min(items.len());
    let work = Mutex::new(items.into_iter().zip(&mut results));
    let worker = || {
        loop {
            // The lock is held while an item is taken, not during the work.
            let next = work.lock().expect("nobody panics with the lock held").next();
            let Some((item, result)) = next else { return };
            *result = Some(f(item));
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    results.into_iter().map(|result| result.expect("every item was worked on")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whatever_the_number_of_threads() {
        for threads in 0..6 {
            assert_eq!(
                map(threads, (0..20).collect(), |i| i * i),
                (0..20).map(|i| i * i).collect::<Vec<_>>()
            );
        }
        assert!(map(4, Vec::<u8>::new(), |i| i).is_empty());
    }
}
