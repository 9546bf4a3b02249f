//! Numbers of users and groups by name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Most answers that are kept.
const MOST_KEPT: usize = 4096;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Account {
    /// A user.
    User,
    /// A group.
    Group,
}

type Lookup = dyn Fn(Account, &str) -> Option<u32> + Send + Sync;
type Answers = HashMap<(Account, Box<str>), Option<u32>>;

/// Numbers of users and groups, for access control lists that have only names. By default none is known.
/// Each name is looked up once.
#[derive(Clone, Default)]
pub struct Accounts(Option<Arc<Inner>>);

struct Inner {
    lookup: Box<Lookup>,
    answers: Mutex<Answers>,
}

impl Accounts {
    /// The function returns the number of a name, if there is one.
    pub fn new(lookup: impl Fn(Account, &str) -> Option<u32> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(Inner {
            lookup: Box::new(lookup),
            answers: Mutex::default(),
        })))
    }

    pub(crate) fn user(&self, name: &str) -> Option<u32> {
        self.number(Account::User, name)
    }

    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.number(Account::Group, name)
    }

    fn number(&self, account: Account, name: &str) -> Option<u32> {
        let inner = self.0.as_ref()?;
        let mut answers = (inner.answers.lock()).unwrap_or_else(PoisonError::into_inner);
        let key = (account, Box::from(name));
        if let Some(answer) = answers.get(&key) {
            return *answer;
        }
        let answer = (inner.lookup)(account, name);
        if answers.len() < MOST_KEPT {
            answers.insert(key, answer);
        }
        answer
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "Accounts(none)",
            Some(_) => "Accounts(..)",
        })
    }
}
