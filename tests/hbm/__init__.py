"""What tests of the HBM tier share: tables that are the truth below it, and lanes that do their work later."""
