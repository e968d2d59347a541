//! Names of socket operations: whose it is and what it does, in one number.

/// Whose operation a completion of `Sockets` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Accept(u32),
    Receive(u32),
    Send(u32),
    AcceptAdmin,
    ReceiveAdmin(u32),
    SendAdmin(u32),
    Signal,
}

impl Token {
    pub(super) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Accept(index) => (0u64, index),
            Self::Receive(index) => (1, index),
            Self::Send(index) => (2, index),
            Self::AcceptAdmin => (3, 0),
            Self::ReceiveAdmin(index) => (4, index),
            Self::SendAdmin(index) => (5, index),
            Self::Signal => (6, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(super) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Accept(index),
            1 => Self::Receive(index),
            2 => Self::Send(index),
            3 => Self::AcceptAdmin,
            4 => Self::ReceiveAdmin(index),
            5 => Self::SendAdmin(index),
            _ => Self::Signal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_being_a_number() {
        let all = [
            Token::Accept(3),
            Token::Receive(u32::MAX),
            Token::Send(0),
            Token::AcceptAdmin,
            Token::ReceiveAdmin(7),
            Token::SendAdmin(1),
            Token::Signal,
        ];
        for token in all {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
