//! Tokens of socket operations: the owner and the use of each, in one number.

/// The use of one of a worker's socket operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientToken {
    Receive(u32),
    Send(u32),
    WakeUp,
}

impl ClientToken {
    pub(super) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Receive(index) => (0u64, index),
            Self::Send(index) => (1, index),
            Self::WakeUp => (2, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(super) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Receive(index),
            1 => Self::Send(index),
            _ => Self::WakeUp,
        }
    }
}

/// The use of one of the acceptor's socket operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptorToken {
    Accept(u32),
    AcceptAdmin(u32),
    ReceiveAdmin(u32),
    SendAdmin(u32),
    Signal,
    WakeUp,
}

impl AcceptorToken {
    pub(super) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Accept(index) => (0u64, index),
            Self::AcceptAdmin(index) => (1, index),
            Self::ReceiveAdmin(index) => (2, index),
            Self::SendAdmin(index) => (3, index),
            Self::Signal => (4, 0),
            Self::WakeUp => (5, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(super) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Accept(index),
            1 => Self::AcceptAdmin(index),
            2 => Self::ReceiveAdmin(index),
            3 => Self::SendAdmin(index),
            4 => Self::Signal,
            _ => Self::WakeUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_being_a_number() {
        for token in [ClientToken::Receive(u32::MAX), ClientToken::Send(0), ClientToken::WakeUp] {
            assert_eq!(ClientToken::decode(token.encode()), token);
        }
        let all = [
            AcceptorToken::Accept(3),
            AcceptorToken::AcceptAdmin(1),
            AcceptorToken::ReceiveAdmin(7),
            AcceptorToken::SendAdmin(1),
            AcceptorToken::Signal,
            AcceptorToken::WakeUp,
        ];
        for token in all {
            assert_eq!(AcceptorToken::decode(token.encode()), token);
        }
    }
}
