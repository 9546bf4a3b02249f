//! The addresses of servers. A name without address has an error type of its own, because waiting does not help there.

use std::fmt;
use std::io;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::failure::of_system;

/// The resolver of the system.
#[derive(Debug)]
pub(crate) struct SystemResolver;

/// The system knows no address for a name.
#[derive(Debug)]
pub(crate) struct Unresolved {
    name: String,
    cause: io::Error,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.cause.to_string();
        // What the standard library puts before the text of the system.
        let cause = cause.rsplit("address information: ").next();
        let cause = of_system(cause.unwrap_or_default());
        write!(f, "no address for the host '{}': {cause}", self.name)
    }
}

impl std::error::Error for Unresolved {}

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str();
            match tokio::net::lookup_host((name, 0)).await {
                Ok(found) => Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs),
                Err(cause) => {
                    let name = name.to_owned();
                    Err(Unresolved { name, cause }.into())
                }
            }
        })
    }
}
