//! Password entry: what a file of credentials has of a user who logs in with a password.

use super::entries::user_entry;
use super::password::{HashedPassword, MAX_PASSWORD, MIN_CHARACTERS};
use super::role::Role;
use super::token::TokenName;

/// The entry in a file of credentials of a user who logs in with `password`; no domains mean all. Takes
/// tens of milliseconds and 19 MiB.
///
/// # Errors
/// Names the fix if the password is too short or too long, or nobody could use such an entry.
pub fn password_entry(
    name: TokenName,
    password: &str,
    roles: Vec<Role>,
    domains: Option<Vec<String>>,
) -> Result<String, String> {
    if password.chars().count() < MIN_CHARACTERS {
        return Err(format!(
            "the password is too short: write at least {MIN_CHARACTERS} characters, such as four words"
        ));
    }
    if password.len() > MAX_PASSWORD {
        return Err(format!(
            "the password is longer than {MAX_PASSWORD} bytes: write a shorter one"
        ));
    }
    user_entry(name, HashedPassword::new(password)?, roles, domains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_needs_a_password_of_some_length() {
        let entry = |password: &str| {
            password_entry("ada".parse().unwrap(), password, vec![Role::Read], None)
        };
        assert!(entry("elevenchars").unwrap_err().contains("at least 12"));
        assert!(
            entry(&"x".repeat(1_025))
                .unwrap_err()
                .contains("1024 bytes")
        );
        assert!(entry("twelve chars").unwrap().contains("$argon2id$"));
    }
}
