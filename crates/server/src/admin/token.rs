//! The admin token: a secret in a file, with which a client may change things over TCP.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use subtle::ConstantTimeEq;

use crate::private_file;

/// Fewer characters could be guessed.
const LEAST_BYTES: usize = 16;

/// More is no token.
const MOST_BYTES: u64 = 4096;

/// The token in a file. Clones share it, also when it is read again.
#[derive(Clone)]
pub struct Token(Arc<Kept>);

struct Kept {
    file: PathBuf,
    secret: RwLock<String>,
}

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct TokenError {
    file: PathBuf,
    problem: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.0.file).finish()
    }
}

impl Token {
    /// Reads the token in a file that other users cannot read.
    ///
    /// # Errors
    /// When it cannot be read, others can read it, or what it holds is no secret.
    pub fn read(file: &Path) -> Result<Self, TokenError> {
        let secret = RwLock::new(secret_in(file)?);
        Ok(Self(Arc::new(Kept { file: file.to_owned(), secret })))
    }

    /// Reads the file again, for all clones.
    ///
    /// # Errors
    /// As of [`Token::read`]; the token stays what it was.
    pub fn reload(&self) -> Result<(), TokenError> {
        let secret = secret_in(&self.0.file)?;
        *self.0.secret.write().unwrap_or_else(PoisonError::into_inner) = secret;
        Ok(())
    }

    /// Compares with the token; takes as long wherever a wrong one of its length differs.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let secret = self.0.secret.read().unwrap_or_else(PoisonError::into_inner);
        secret.as_bytes().ct_eq(given).into()
    }

    /// The token, to be sent to a server.
    pub(crate) fn secret(&self) -> String {
        self.0.secret.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn secret_in(path: &Path) -> Result<String, TokenError> {
    let refuse = |problem: String| TokenError { file: path.to_owned(), problem };
    let text = private_file::read(path, MOST_BYTES).map_err(refuse)?;
    let secret = text.trim();
    let is_plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() as u64 > MOST_BYTES || secret.len() < LEAST_BYTES || !is_plain {
        let problem = format!(
            "it holds no token, which is {LEAST_BYTES} visible characters or more; make one with \
             openssl rand -hex 32"
        );
        return Err(refuse(problem));
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_token_is_itself_and_nothing_else_until_it_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "0123456789abcdef\n", 0o600);
        let token = Token::read(&path).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef\n"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong:?}");
        }
        write(&path, "another 0123456789", 0o600);
        assert!(token.reload().is_err() && token.is(b"0123456789abcdef"));
        write(&path, "fedcba9876543210", 0o600);
        token.reload().unwrap();
        assert!(token.is(b"fedcba9876543210") && !token.is(b"0123456789abcdef"));
        assert!(!format!("{token:?}").contains("fedcba"));
    }

    #[test]
    fn a_file_that_keeps_no_secret_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let problem = |text: &str, mode| {
            write(&path, text, mode);
            Token::read(&path).unwrap_err().to_string()
        };
        assert!(problem("0123456789abcdef", 0o604).contains("other users can use it (mode 604)"));
        for text in ["", "short", "0123456789 abcdef", &"a".repeat(5000)] {
            assert!(problem(text, 0o600).contains("holds no token"), "{text}");
        }
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(Token::read(&pipe).unwrap_err().to_string().contains("no regular file"));
        assert!(Token::read(folder.path()).unwrap_err().to_string().contains("no regular file"));
        assert!(
            Token::read(Path::new("/no/token")).unwrap_err().to_string().contains("No such file")
        );
    }
}
