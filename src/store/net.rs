//! Calls to the servers of a store: connections by name or address, with or without TLS, each call within its deadline
//! and repeated until it is answered. This part knows no store.

use std::fmt;

pub(super) mod dial;
pub(super) mod retry;
pub(super) mod socket;
pub(super) mod tls;

/// A password, or a setting that may contain one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Secret {
        Secret(text.into())
    }
}

#[cfg(test)]
mod tests {
    use crate::store::Access;

    #[test]
    fn no_password_is_printed_with_the_settings() {
        let variables = |name: &str| (name == "CSALOCK_ETCD_PASSWORD").then(|| "sesame".into());
        let access = Access::from_variables(&variables);
        let printed = format!("{access:?}");
        assert!(printed.contains("password: Some((hidden))") && !printed.contains("sesame"), "{printed}");
    }
}
