//! What is found out from a table when it is first needed.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Error, Result};

/// A value that takes a pass over a table. It is made once, and so is an error that lies in the image.
#[derive(Debug)]
pub(super) struct Once<T> {
    made: OnceLock<Result<T>>,
    /// One thread makes it, others wait.
    making: Mutex<()>,
}

impl<T> Once<T> {
    pub(super) fn new() -> Self {
        Self {
            made: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// One that was made.
    pub(super) fn of(value: T) -> Self {
        Self {
            made: OnceLock::from(Ok(value)),
            making: Mutex::new(()),
        }
    }

    /// The value. `make` makes it if nobody has done so.
    ///
    /// # Errors
    /// Those of `make`. It is asked again only after [`Error::Io`].
    #[inline]
    pub(super) fn get_or_make(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        match self.made.get() {
            Some(Ok(value)) => Ok(value),
            _ => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        // The lock guards no data: after a panic, the next thread makes the value.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match self.made.get() {
            Some(made) => made,
            None => match make() {
                Err(Error::Io(e)) => return Err(e.into()),
                made => self.made.get_or_init(|| made),
            },
        };
        made.as_ref().map_err(Error::replicate)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::thread;

    use super::*;

    #[test]
    fn many_threads_need_it_and_one_makes_it() {
        let (once, calls) = (Once::new(), AtomicU32::new(0));
        let ready = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    ready.wait();
                    let value = once.get_or_make(|| {
                        calls.fetch_add(1, Relaxed);
                        // The others come meanwhile.
                        thread::sleep(std::time::Duration::from_millis(20));
                        Ok(7)
                    });
                    assert_eq!(*value.unwrap(), 7);
                });
            }
        });
        assert_eq!(calls.load(Relaxed), 1);
    }

    #[test]
    fn damage_is_remembered_and_errors_of_the_medium_are_not() {
        let calls = AtomicU32::new(0);
        let attempt = |once: &Once<()>, error: fn() -> Error| {
            let result = once.get_or_make(|| {
                calls.fetch_add(1, Relaxed);
                Err(error())
            });
            result.unwrap_err().to_string()
        };
        let io: fn() -> Error = || io::Error::other("unplugged").into();
        let once = Once::new();
        assert_eq!(attempt(&once, io), attempt(&once, io));
        assert_eq!(calls.load(Relaxed), 2);
        for error in
            [|| Error::corrupt("wrong"), || Error::Limit("large".into())] as [fn() -> Error; 2]
        {
            calls.store(0, Relaxed);
            let once = Once::new();
            assert_eq!(attempt(&once, error), error().to_string());
            assert_eq!(attempt(&once, io), error().to_string());
            assert_eq!(calls.load(Relaxed), 1);
        }
    }
}
